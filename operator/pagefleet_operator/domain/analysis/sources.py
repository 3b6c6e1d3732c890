"""By whom each signal of the guard is measured, and what of it was heard. Names sources; judges nothing.

A source is known by a name: "gateway", "engine", "prometheus" (the engines' own histograms as Prometheus keeps them), or
"prometheus HISTOGRAM". Mirrored requests, whose answers the gateways throw away, are measured by the engines instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagefleet_operator.domain.spec.rollout import Guard, LatencyGuard
from pagefleet_operator.domain.spec.schema.guard_signals import GUARD_SIGNALS, Source
from pagefleet_operator.domain.status.observation import Observation, Slice

GATEWAY, ENGINE, PROMETHEUS = "gateway", "engine", "prometheus"
SILENT = {
    Source.GATEWAY: "no gateway answers",
    Source.ENGINE: "no engine answers",
    Source.PROMETHEUS: "Prometheus has not been asked",
}


def source(entry: LatencyGuard, copies: bool) -> Source | None:
    """Who measures an entry; `copies`: of mirrored requests. None: nobody can (engines know no tpot)."""
    if not copies or entry.source is not Source.GATEWAY:
        return entry.source
    return Source.ENGINE if GUARD_SIGNALS[entry.signal].engine else None


def error_source(guard: Guard, copies: bool) -> Source:
    return Source.ENGINE if copies and guard.error_source is Source.GATEWAY else guard.error_source


def name(chosen: Source, histogram: str = "") -> str:
    match chosen:
        case Source.GATEWAY:
            return GATEWAY
        case Source.ENGINE:
            return ENGINE
        case Source.PROMETHEUS:
            return f"{PROMETHEUS} {histogram}".rstrip()


def heard(seen: Observation) -> dict[str, Sequence[Slice]]:
    """Slices by the source's name; what is silent is left out."""
    found = {GATEWAY: seen.slices, ENGINE: seen.engine_slices}
    found |= {name(Source.PROMETHEUS, histogram): slices for histogram, slices in seen.prometheus.items()}
    return {source: slices for source, slices in found.items() if slices is not None}


def silent(seen: Observation, chosen: Source, histogram: str = "") -> str:
    """Why a source has nothing to judge by."""
    return seen.silence.get(name(chosen, histogram)) or SILENT[chosen]


def requests(seen: Observation, guard: Guard, revision: str, since: float, copies: bool) -> int:
    """How many requests of a revision that source has counted that counted most."""
    counted = {GATEWAY}
    if not copies:
        counted |= {name(entry.source, entry.histogram) for entry in guard.latency}
        counted.add(name(guard.error_source))
    found = {name: slices for name, slices in heard(seen).items() if name in counted}
    ours = ((piece for piece in slices if piece.revision == revision) for slices in found.values())
    return max((sum(piece.requests for piece in slices if piece.start >= since) for slices in ours), default=0)
