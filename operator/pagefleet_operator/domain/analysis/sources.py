"""Names the source that measures each signal of the guard, and finds its measurements. It judges nothing.

A source has a name: "gateway", "engine", "prometheus" (the engines' own histograms as Prometheus stores them), or
"prometheus HISTOGRAM". Mirrored requests, whose answers the gateways throw away, are measured by the engines instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagefleet_operator.domain.spec.rollout import Guard, LatencyGuard
from pagefleet_operator.domain.spec.schema.guard_signals import GUARD_SIGNALS, Source
from pagefleet_operator.domain.status.observation import Observation, Slice

GATEWAY, ENGINE, PROMETHEUS = "gateway", "engine", "prometheus"
# The reasons without a better one. They name the likeliest causes, because they are read on call.
SILENT = {
    Source.GATEWAY: "no gateway answered the operator (are gateway pods ready, and does a NetworkPolicy admit it?)",
    Source.ENGINE: "no engine answered the operator (does a NetworkPolicy admit it to the pods' metrics?)",
    Source.PROMETHEUS: "Prometheus has not been asked yet",
}


def measuring_source(entry: LatencyGuard, mirrored: bool) -> Source | None:
    """The source of an entry, for mirrored requests or others. None when no source can measure it.

    Engines measure no tpot.
    """
    if not mirrored or entry.source is not Source.GATEWAY:
        return entry.source
    return Source.ENGINE if GUARD_SIGNALS[entry.signal].engine else None


def error_source(guard: Guard, mirrored: bool) -> Source:
    """The source of the errors, for mirrored requests or others."""
    return Source.ENGINE if mirrored and guard.error_source is Source.GATEWAY else guard.error_source


def name_of(source: Source, histogram: str = "") -> str:
    """The source's name, by which its measurements are stored."""
    match source:
        case Source.GATEWAY:
            return GATEWAY
        case Source.ENGINE:
            return ENGINE
        case Source.PROMETHEUS:
            return f"{PROMETHEUS} {histogram}".rstrip()


def available_slices(observation: Observation) -> dict[str, Sequence[Slice]]:
    """Slices by the source's name; a source without an answer is left out."""
    slices = {GATEWAY: observation.slices, ENGINE: observation.engine_slices}
    slices |= {name_of(Source.PROMETHEUS, histogram): own for histogram, own in observation.prometheus.items()}
    return {name: own for name, own in slices.items() if own is not None}


def reason_of_silence(observation: Observation, source: Source, histogram: str = "") -> str:
    """The reason why a source has no measurements."""
    return observation.silence.get(name_of(source, histogram)) or SILENT[source]


def count_requests(observation: Observation, guard: Guard, revision: str, since: float, mirrored: bool) -> int:
    """Count a revision's requests since a time, by the source that has counted most."""
    names = {GATEWAY}
    if not mirrored:
        names |= {name_of(entry.source, entry.histogram) for entry in guard.latency}
        names.add(name_of(guard.error_source))
    counts = [
        sum(piece.requests - piece.retried for piece in slices if piece.revision == revision and piece.start >= since)
        for name, slices in available_slices(observation).items()
        if name in names
    ]
    return max(counts, default=0)
