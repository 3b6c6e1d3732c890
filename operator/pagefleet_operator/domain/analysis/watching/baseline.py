"""Records the previous revision's latencies when it is replaced, small enough for a status. The watch needs them.

Where whole answers stand in for first tokens (`whole_answers`), their times are recorded in the place of those.
"""

from __future__ import annotations

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis import sources
from pagefleet_operator.domain.analysis.adjusted import whole_answers
from pagefleet_operator.domain.spec.rollout import Guard
from pagefleet_operator.domain.status.observation import START, Observation
from pagefleet_operator.domain.status.status import BaselineRecord

MAX_BUCKETS = 120  # neighbouring buckets are merged upwards until no more are left


def record_baseline(observation: Observation, guard: Guard, revision: str) -> tuple[BaselineRecord, ...]:
    """Make one histogram for each signal of the guard and each stratum in which `revision` was measured."""
    records, available = [], sources.available_slices(observation)
    entries = guard.latency
    if guard.whole_answers and _stands_in(observation, revision):
        entries = whole_answers.entries_for(entries)
    measured = dict.fromkeys((entry.signal, sources.name_of(entry.source, entry.histogram)) for entry in entries)
    for signal, source in measured:
        own = [piece for piece in available.get(source, ()) if piece.revision == revision]
        for stratum in sorted({piece.stratum for piece in own}):
            merged = sketch.merged([piece.latency.get(signal, {}) for piece in own if piece.stratum == stratum])
            if merged:
                histogram = sketch.stored(merged, MAX_BUCKETS)
                records.append(BaselineRecord(revision, signal, stratum, histogram, source))
    return tuple(records)


def _stands_in(observation: Observation, revision: str) -> bool:
    """Whether the rollout judged whole answers, or would have: the revision's clients do not stream."""
    if any(one.whole and one.stable == revision for one in observation.status.rollout.evidence):
        return True
    return whole_answers.stand_in(sorted(observation.slices or (), key=START), revision)
