"""Retains the sums between two decisions, in the memo, and between two operators, in the status.

Slices that a slow gateway may still add to are judged on a copy. A slice that comes later than that is left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis.adjusted.accumulated import Accumulated, AdjustedScope, Earlier
from pagefleet_operator.domain.analysis.adjusted.alternatives import COUNT
from pagefleet_operator.domain.analysis.adjusted.onsets import OnsetMixture
from pagefleet_operator.domain.analysis.adjusted.reference import RETAINED_SECONDS
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.status import BaselineRecord, EvidenceRecord

MEMO = "load-adjusted"
SIGNAL = "relative ttft"
DIGITS = 3
MAX_BUCKETS = 120  # of a stored histogram
START = attrgetter("start")
SETTLED_SECONDS = 20.0  # slices of a gateway that answers so much later than the others can still change the order


@dataclass
class _Stored:
    """`sums` has all slices that started up to `newest` in it."""

    sums: Accumulated
    newest: float


def accumulate(
    memo: MutableMapping[str, object],
    scope: AdjustedScope,
    ordered: Sequence[Slice],
    records: Collection[EvidenceRecord],
) -> tuple[Accumulated, EvidenceRecord]:
    """Add up slices in the order of time. Return the sums of all of them, and the record of those that are settled.

    `records` are the stored ones. They count only where the memo has no sums for this scope, and only for the same revisions.
    """
    name = f"{MEMO} {scope.increase:g}"
    stored = memo.pop(name, None)  # not in the memo while it changes: a failure halfway must not leave it there
    if not isinstance(stored, _Stored) or stored.sums.scope != scope:
        stored = _Stored(Accumulated(scope, _earlier(records, scope)), scope.begin - RETAINED_SECONDS)
    useful = [
        piece
        for piece in ordered[bisect_right(ordered, stored.newest, key=START) :]
        if piece.possible and piece.revision in (scope.stable, scope.canary)
    ]
    settled = useful[-1].start - SETTLED_SECONDS if useful else 0.0
    groups = list(_by_start(useful))
    for start, pieces in groups:
        if start < settled:
            stored.sums.add(start, pieces)
            stored.newest = start
    memo[name] = stored
    newest = stored.sums.copied()
    for start, pieces in groups:
        if start >= settled:
            newest.add(start, pieces)
    return newest, _record(stored.sums)


def _by_start(ordered: Sequence[Slice]) -> Iterator[tuple[float, list[Slice]]]:
    for start, pieces in groupby(ordered, key=START):
        yield start, list(pieces)


def _record(sums: Accumulated) -> EvidenceRecord:
    scope, evidence = sums.scope, sums.evidence
    times = tuple(
        BaselineRecord(
            scope.canary,
            SIGNAL,
            name,
            {str(bucket): count for bucket, count in sketch.coarse(own, MAX_BUCKETS).items()},
        )
        for name, own in sorted(sums.canary.items())
        if own
    )
    logs = tuple(round(log, DIGITS) for log in evidence.logs)
    return EvidenceRecord(scope.stable, scope.canary, scope.increase, sums.until, evidence.blocks, logs, times)


def _earlier(records: Collection[EvidenceRecord], scope: AdjustedScope) -> Earlier | None:
    wanted = (scope.stable, scope.canary, scope.increase)
    record = next((one for one in records if (one.stable, one.canary, one.increase) == wanted), None)
    if record is None or len(record.logs) != COUNT or record.newest < scope.begin or record.blocks < 0:
        return None
    times = {
        entry.stratum: {int(b): n for b, n in entry.histogram.items() if b.isdecimal() and isinstance(n, int) and n > 0}
        for entry in record.times
        if entry.signal == SIGNAL
    }
    return Earlier(record.newest, OnsetMixture(record.logs, record.blocks), times)
