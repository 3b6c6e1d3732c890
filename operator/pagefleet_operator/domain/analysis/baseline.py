"""What the previous revision was like at its relief, kept for the watch after promotion: small enough for a status."""

from __future__ import annotations

from collections.abc import Iterable

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis import sources
from pagefleet_operator.domain.spec.rollout import Guard
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.status import BaselineRecord

MOST_BUCKETS = 120  # neighbouring buckets are merged upwards until so many are left


def recorded(seen: Observation, guard: Guard, revision: str) -> tuple[BaselineRecord, ...]:
    """One histogram for each signal of the guard and each stratum in which `revision` was measured."""
    found, heard = [], sources.heard(seen)
    measured = dict.fromkeys((entry.signal, sources.name(entry.source, entry.histogram)) for entry in guard.latency)
    for signal, source in measured:
        ours = [piece for piece in heard.get(source, ()) if piece.revision == revision]
        for stratum in sorted({piece.stratum for piece in ours}):
            merged = sketch.merged([p.latency.get(signal, {}) for p in ours if p.stratum == stratum])
            if merged:
                histogram = {str(bucket): count for bucket, count in _coarse(merged).items()}
                found.append(BaselineRecord(revision, signal, stratum, histogram, source))
    return tuple(found)


def _coarse(histogram: sketch.Histogram) -> dict[int, int]:
    """At most MOST_BUCKETS buckets; a count moves up only, so that a bound read from them is never too low."""
    result, width = dict(histogram), 1
    while len(result) > MOST_BUCKETS:
        width *= 2
        result = _merged(histogram.items(), width)
    return dict(sorted(result.items()))


def _merged(items: Iterable[tuple[int, int]], width: int) -> dict[int, int]:
    result: dict[int, int] = {}
    for bucket, count in items:
        place = -(-bucket // width) * width
        result[place] = result.get(place, 0) + count
    return result
