"""Names the source that measures each signal of the guard, and finds its measurements. It judges nothing.

A source has a name: "gateway", "engine", "prometheus" (the engines' own histograms as Prometheus stores them), or
"prometheus HISTOGRAM". Mirrored requests, whose answers the gateways throw away, are measured by the engines instead.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pagefleet_operator.domain.spec.rollout import Guard, LatencyGuard
from pagefleet_operator.domain.spec.schema.guard_signals import GUARD_SIGNALS, Source
from pagefleet_operator.domain.status.observation import START, Observation, Slice

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
    """Count a revision's requests since a time, by the source that has counted most.

    A step may ask for the requests of hours, and a busy service's slices are retained for minutes: the gateways' earlier ones are
    added.
    """
    names = {GATEWAY}
    if not mirrored:
        names |= {name_of(entry.source, entry.histogram) for entry in guard.latency}
        names.add(name_of(guard.error_source))
    available = available_slices(observation)
    counts = {
        name: _counted(observation.memo, name, available[name], revision, since) for name in names & available.keys()
    }
    if GATEWAY in counts:
        earlier = observation.earlier.get(revision, {})
        counts[GATEWAY] += sum(requests for start, requests in earlier.items() if start >= since)
    return max(counts.values(), default=0)


@dataclass(frozen=True)
class _Counted:
    """The requests of a revision since a time in `slices`."""

    revision: str
    since: float
    slices: Sequence[Slice]
    requests: int


def _counted(
    memo: MutableMapping[str, object], source: str, slices: Sequence[Slice], revision: str, since: float
) -> int:
    """Count in the slices that have come since the last decision, and add what the memo has of the others."""
    key = f"requests {source}"
    known = memo.get(key)
    same = isinstance(known, _Counted) and (known.revision, known.since) == (revision, since)
    if not isinstance(known, _Counted) or not same or not begins_with(memo, slices, known.slices):
        known = _Counted(revision, since, (), 0)
    new = slices[len(known.slices) :]
    own = (piece.requests - piece.retried for piece in new if piece.revision == revision and piece.start >= since)
    counted = _Counted(revision, since, slices, known.requests + sum(own))
    memo[key] = counted
    return counted.requests


def in_order(memo: MutableMapping[str, object], source: str, slices: Sequence[Slice]) -> Sequence[Slice]:
    """Return a source's slices in the order of time. Readers store them so; the memo has those that have been looked at."""
    key = f"order {source}"
    known = memo.get(key, ())
    first = max(0, len(known) - 1) if isinstance(known, tuple) and begins_with(memo, slices, known) else 0
    if any(later.start < piece.start for piece, later in pairwise(slices[first:])):
        return tuple(sorted(slices, key=START))
    memo[key] = slices
    return slices


def begins_with(memo: MutableMapping[str, object], slices: Sequence[Slice], known: Sequence[Slice]) -> bool:
    """Whether slices begin with those that are known. The last answer is in the memo: others ask for the same."""
    match memo.get("begins"):
        case (before, begin, bool(answer)) if before is slices and begin is known:
            return answer
    answer = slices[: len(known)] == known
    memo["begins"] = slices, known, answer
    return answer
