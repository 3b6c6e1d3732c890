"""Retains the sums between two decisions, in the memo, and between two operators, in the status.

A slow gateway may still add to the slices of the last SETTLED_SECONDS. When it does, they are added up again from there on, onto
the sums of a checkpoint. A slice that comes later than that is left out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, zip_longest
from operator import attrgetter, itemgetter

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis.adjusted.accumulated import Accumulated, AdjustedScope, Earlier
from pagefleet_operator.domain.analysis.adjusted.alternatives import COUNT
from pagefleet_operator.domain.analysis.adjusted.onsets import OnsetMixture
from pagefleet_operator.domain.analysis.adjusted.reference import RETAINED_SECONDS
from pagefleet_operator.domain.analysis.adjusted.suspects import Suspects
from pagefleet_operator.domain.status.observation import START, Slice
from pagefleet_operator.domain.status.status import BaselineRecord, EvidenceRecord

MEMO = "load-adjusted"
SIGNAL = "relative ttft"  # in the stored records, also of whole answers
SUSPECTS, UNMEASURED = "suspect relative ttft", "suspect unmeasured"
DIGITS = 3
MAX_BUCKETS = 120  # of a stored histogram
SETTLED_SECONDS = 20.0  # slices of a gateway that answers so much later than the others can still change the order
CHECKPOINT_SECONDS = 8.0  # between two checkpoints
UNTIL = attrgetter("until")
Group = tuple[float, list[Slice]]  # the slices of one start


@dataclass(frozen=True)
class _Checkpoint:
    """The sums of all slices that started up to `until`. Others are added to a copy."""

    until: float
    sums: Accumulated

    @cached_property
    def record(self) -> EvidenceRecord:
        return _record(self.sums)


@dataclass(frozen=True)
class _Stored:
    """`latest` has `groups` in it, and what the first of the checkpoints has, which is settled.

    A slice that started up to `closed` and comes now is left out.
    """

    checkpoints: list[_Checkpoint]  # in the order of time
    groups: list[Group]
    latest: Accumulated
    closed: float


def accumulate(
    memo: MutableMapping[str, object],
    scope: AdjustedScope,
    ordered: Sequence[Slice],
    records: Collection[EvidenceRecord],
    pods: int = 1,
) -> tuple[Accumulated, EvidenceRecord]:
    """Add up slices in the order of time. Return the sums of all of them, and the record of those that are settled.

    The canary has so many `pods`. `records` are the stored ones. They count only where the memo has no sums for this scope, and only for the same revisions.
    """
    name = f"{MEMO} {scope.increase:g}{' whole' if scope.whole else ''}"
    stored = memo.pop(name, None)  # not in the memo while it changes: a failure halfway must not leave it there
    # After the clock was set back, slices of the time that is still to come are gone, and the records go on from now.
    back = isinstance(stored, _Stored) and bool(ordered) and ordered[-1].start < stored.closed
    if not isinstance(stored, _Stored) or stored.latest.scope != scope or back:
        oldest, fresh = scope.begin - RETAINED_SECONDS, Accumulated(scope, _earlier(records, scope))
        stored = _Stored([_Checkpoint(oldest, fresh.copied())], [], fresh, oldest)
    useful = [
        piece
        for piece in ordered[bisect_right(ordered, stored.closed, key=START) :]
        if piece.possible
        and piece.revision in (scope.stable, scope.canary)
        and (not piece.adjusted or piece.whole == scope.whole)
    ]
    groups = [*(group for group in stored.groups if group[0] <= stored.closed), *_by_start(useful)]
    border = useful[-1].start - SETTLED_SECONDS if useful else stored.closed
    checkpoints, latest, known = _unchanged(stored, groups)
    until = groups[known - 1][0] if known else checkpoints[-1].until
    for start, pieces in groups[known:]:
        if _cell(start) > _cell(until) and start >= _cell(border):
            checkpoints.append(_Checkpoint(until, latest.copied()))
        latest.add(start, pieces, pods)
        until = start
    settled = checkpoints[max(0, bisect_left(checkpoints, border, key=UNTIL) - 1) :]
    closed = max((start for start, _ in groups if start < border), default=stored.closed)
    memo[name] = _Stored(settled, [group for group in groups if group[0] > settled[0].until], latest, closed)
    return latest, settled[0].record


def _unchanged(stored: _Stored, groups: list[Group]) -> tuple[list[_Checkpoint], Accumulated, int]:
    """The checkpoints and sums that are still true of `groups`, and how many of the groups these sums have."""
    known = len(stored.groups)
    if groups[:known] == stored.groups:
        return list(stored.checkpoints), stored.latest, known
    pairs = zip_longest(stored.groups, groups)
    changed = next(min(one[0] for one in pair if one) for pair in pairs if pair[0] != pair[1])
    checkpoints = [one for one in stored.checkpoints if one.until < changed]
    return checkpoints, checkpoints[-1].sums.copied(), bisect_right(groups, checkpoints[-1].until, key=itemgetter(0))


def _cell(start: float) -> float:
    """The time of the checkpoint before a slice."""
    return start // CHECKPOINT_SECONDS * CHECKPOINT_SECONDS


def _by_start(ordered: Sequence[Slice]) -> Iterator[Group]:
    for start, pieces in groupby(ordered, key=START):
        yield start, list(pieces)


def _record(sums: Accumulated) -> EvidenceRecord:
    scope, evidence = sums.scope, sums.evidence
    parts = (SIGNAL, sums.canary), (SUSPECTS, sums.suspects.measured), (UNMEASURED, sums.suspects.unmeasured)
    times = tuple(
        BaselineRecord(scope.canary, signal, name, sketch.stored(own, MAX_BUCKETS))
        for signal, strata in parts
        for name, own in sorted(strata.items())
        if own
    )
    logs = tuple(round(log, DIGITS) for log in evidence.logs)
    return EvidenceRecord(
        scope.stable, scope.canary, scope.increase, sums.until, evidence.blocks, logs, times, scope.whole
    )


def _earlier(records: Collection[EvidenceRecord], scope: AdjustedScope) -> Earlier | None:
    wanted = (scope.stable, scope.canary, scope.increase, scope.whole)
    record = next((one for one in records if (one.stable, one.canary, one.increase, one.whole) == wanted), None)
    if record is None or len(record.logs) != COUNT or record.newest < scope.begin or record.blocks < 0:
        return None
    times, measured, unmeasured = (
        {entry.stratum: dict(entry.counts) for entry in record.times if entry.signal == signal}
        for signal in (SIGNAL, SUSPECTS, UNMEASURED)
    )
    return Earlier(record.newest, OnsetMixture(record.logs, record.blocks), times, Suspects(measured, unmeasured))
