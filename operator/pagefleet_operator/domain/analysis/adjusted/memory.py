"""Retains the sums between two decisions, in the memo, and between two operators, in the status.

A slow gateway may still add to the slices of the last SETTLED_SECONDS: when it does, these are added up again, onto the sums
of the settled ones. A slice that comes later than that is left out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis.adjusted.accumulated import Accumulated, AdjustedScope, Earlier
from pagefleet_operator.domain.analysis.adjusted.alternatives import COUNT
from pagefleet_operator.domain.analysis.adjusted.onsets import OnsetMixture
from pagefleet_operator.domain.analysis.adjusted.reference import RETAINED_SECONDS
from pagefleet_operator.domain.status.observation import START, Slice
from pagefleet_operator.domain.status.status import BaselineRecord, EvidenceRecord

MEMO = "load-adjusted"
SIGNAL = "relative ttft"
DIGITS = 3
MAX_BUCKETS = 120  # of a stored histogram
SETTLED_SECONDS = 20.0  # slices of a gateway that answers so much later than the others can still change the order


Group = tuple[float, list[Slice]]  # the slices of one start


@dataclass(frozen=True)
class _Stored:
    """`settled` has all slices that started up to `newest` in it. `latest` has those of `groups` as well."""

    settled: Accumulated
    newest: float
    latest: Accumulated
    groups: list[Group]


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
    if not isinstance(stored, _Stored) or stored.settled.scope != scope:
        fresh = Accumulated(scope, _earlier(records, scope))
        stored = _Stored(fresh, scope.begin - RETAINED_SECONDS, fresh.copied(), [])
    settled, newest, latest, known = stored.settled, stored.newest, stored.latest, len(stored.groups)
    useful = [
        piece
        for piece in ordered[bisect_right(ordered, newest, key=START) :]
        if piece.possible and piece.revision in (scope.stable, scope.canary)
    ]
    groups = list(_by_start(useful))
    if groups[:known] != stored.groups:  # a slow gateway has answered
        latest, known = settled.copied(), 0
    for start, pieces in groups[known:]:
        latest.add(start, pieces)
    border = useful[-1].start - SETTLED_SECONDS if useful else 0.0
    done = bisect_left(groups, border, key=itemgetter(0))
    for start, pieces in groups[:done]:
        settled.add(start, pieces)
        newest = start
    memo[name] = _Stored(settled, newest, latest, groups[done:])
    return latest, _record(settled)


def _by_start(ordered: Sequence[Slice]) -> Iterator[Group]:
    for start, pieces in groupby(ordered, key=START):
        yield start, list(pieces)


def _record(sums: Accumulated) -> EvidenceRecord:
    scope, evidence = sums.scope, sums.evidence
    times = tuple(
        BaselineRecord(scope.canary, SIGNAL, name, sketch.stored(own, MAX_BUCKETS))
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
    times = {entry.stratum: entry.counts for entry in record.times if entry.signal == SIGNAL}
    return Earlier(record.newest, OnsetMixture(record.logs, record.blocks), times)
