"""Protects what two decisions and two operators hand on of the sums at equal load: the record is of slices that can no longer change, a
gateway that answers late is still counted until then, and a record that is not of this rollout is not used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.load_slices import KNOWN, TIMES, piece

from pagefleet_operator.domain.analysis.adjusted.accumulated import Accumulated, AdjustedScope
from pagefleet_operator.domain.analysis.adjusted.memory import accumulate
from pagefleet_operator.domain.status.observation import LoadCounts, Slice
from pagefleet_operator.domain.status.status import BaselineRecord, EvidenceRecord

SCOPE = AdjustedScope("s", "c", begin=30.0, warm_up=0, increase=0.15)
SLOW = {300: 1}


def slices(newest: int) -> list[Slice]:
    """The stable's first 200 requests, and a request of each revision every two seconds from second 30 on."""
    return [piece("s", 0.0, TIMES), *(one for start in range(30, newest + 1, 2) for one in moment(float(start)))]


def moment(start: float) -> Iterator[Slice]:
    yield piece("s", start, {1: 1})
    yield piece("c", start, {90: 1} if start % 10 else SLOW)


def added(pieces: list[Slice], until: float) -> Accumulated:
    sums = Accumulated(SCOPE)
    for start in sorted({one.start for one in pieces}):
        if start <= until:
            sums.add(start, [one for one in pieces if one.start == start])
    return sums


def late(pieces: list[Slice], start: float) -> list[Slice]:
    """With the slice of a gateway that answers after the others."""
    return sorted([*pieces, replace(piece("c", start, {300: 50}), instance="h")], key=lambda one: one.start)


def test_the_sums_are_those_of_all_slices_and_the_record_is_of_those_before_the_last_twenty_seconds() -> None:
    """The newest slice starts at 100, so that those from 80 on may change. The checkpoint before 80 is the one of 78."""
    sums, record = accumulate({}, SCOPE, slices(100), ())
    whole, settled = added(slices(100), 100.0), added(slices(100), 78.0)
    assert (sums.evidence, sums.canary, sums.until) == (whole.evidence, whole.canary, 100.0)
    logs = tuple(round(log, 3) for log in settled.evidence.logs)
    assert record == EvidenceRecord("s", "c", 0.15, 78.0, 25, logs, record.times)
    relative = BaselineRecord("c", "relative ttft", KNOWN, {"90": 20, "300": 5})
    assert record.times[0] == relative and settled.evidence.log > 0
    assert [entry.signal for entry in record.times] == ["relative ttft", "suspect relative ttft"]


@pytest.mark.parametrize(("newest", "settled"), [(102, 78.0), (106, 78.0), (108, 86.0), (116, 94.0)])
def test_checkpoints_are_eight_seconds_apart(newest: int, settled: float) -> None:
    memo: dict[str, object] = {}
    accumulate(memo, SCOPE, slices(100), ())
    for step in range(102, newest + 1, 2):
        sums, record = accumulate(memo, SCOPE, slices(step), ())
    assert record.newest == settled == accumulate({}, SCOPE, slices(newest), ())[1].newest
    assert sums.evidence == added(slices(newest), newest).evidence


@pytest.mark.parametrize(("start", "counts"), [(100.0, True), (90.0, True), (86.0, True), (80.0, True), (78.0, False)])
def test_a_slice_that_comes_late_counts_while_its_time_is_not_settled(start: float, counts: bool) -> None:
    memo: dict[str, object] = {}
    before, _ = accumulate(memo, SCOPE, slices(100), ())
    log = before.evidence.log
    after, _ = accumulate(memo, SCOPE, late(slices(100), start), ())
    assert after.evidence == added(late(slices(100), start) if counts else slices(100), 100.0).evidence
    assert (after.evidence.log > log) is counts
    again, record = accumulate(memo, SCOPE, late(slices(120), start), ())
    assert again.evidence == added(late(slices(120), start) if counts else slices(120), 120.0).evidence
    assert record.newest == 94.0


def test_after_the_clock_was_set_back_the_slices_that_come_count() -> None:
    memo: dict[str, object] = {}
    before, record = accumulate(memo, SCOPE, slices(200), ())
    stored = replace(record, newest=100.0)  # the present time, as the decision sees to
    back, _ = accumulate(memo, SCOPE, slices(100), (stored,))
    assert back.evidence.blocks == record.blocks < before.evidence.blocks, "nothing counts twice"
    later, _ = accumulate(memo, SCOPE, slices(110), (stored,))
    assert later.evidence.blocks == record.blocks + 5
    assert sum(later.canary[KNOWN].values()) == sum(record.times[0].histogram.values()) + 5


def test_a_slice_that_comes_late_does_not_count_the_ones_before_it_twice() -> None:
    memo: dict[str, object] = {}
    for newest in (100, 102, 104):
        accumulate(memo, SCOPE, slices(newest), ())
    after, _ = accumulate(memo, SCOPE, late(slices(104), 104.0), ())
    assert after.reference.strata == added(slices(104), 104.0).reference.strata


def test_a_slice_that_is_no_longer_reported_does_not_count() -> None:
    """The checkpoint of 86 is not true any more."""
    memo: dict[str, object] = {}
    accumulate(memo, SCOPE, slices(100), ())
    fewer = [one for one in slices(100) if one.start != 86.0]
    assert accumulate(memo, SCOPE, fewer, ())[0].evidence == added(fewer, 100.0).evidence


def test_of_the_slices_only_those_after_the_settled_checkpoint_are_retained() -> None:
    memo: dict[str, object] = {}
    accumulate(memo, SCOPE, slices(100), ())
    groups = getattr(memo["load-adjusted 0.15"], "groups", [])
    assert [start for start, _ in groups] == [float(start) for start in range(80, 101, 2)]


def test_a_canary_is_taken_for_a_single_pod_where_nothing_else_is_said() -> None:
    """The stable's pods are slow together, so that more pods of the canary show less."""
    pieces = [piece("s", 0.0, TIMES)]
    for start in range(30, 101, 2):
        pods = {f"p{number}": {(85 if start // 10 % 2 else 1): 4} for number in range(3)}
        pieces += [piece("s", float(start), {1: 12}, pods=pods), piece("c", float(start), SLOW)]
    unsaid, one, two = (accumulate({}, SCOPE, pieces, (), *pods)[0].evidence.logs[0] for pods in ((), (1,), (2,)))
    assert unsaid == one > two


def test_what_is_not_possible_or_not_of_these_revisions_is_left_out() -> None:
    strange = [replace(piece("c", 40.0, SLOW), errors=1), piece("other", 500.0, SLOW)]
    pieces = sorted([*slices(100), *strange], key=lambda one: one.start)
    sums, record = accumulate({}, SCOPE, pieces, ())
    assert (sums.evidence, sums.until, record.newest) == (added(slices(100), 100.0).evidence, 100.0, 78.0)


def test_slices_count_from_twenty_minutes_before_the_begin_on() -> None:
    sums, record = accumulate({}, SCOPE, [piece("s", -1170.0, {1: 1}), piece("s", -1169.0, {2: 1})], ())
    assert sums.reference.strata == {KNOWN: {2: 1}}
    assert (record.newest, record.blocks, record.times) == (29.0, 0, ())
    assert accumulate({}, SCOPE, [], ())[0].until == 29.0


def test_another_scope_has_sums_of_its_own() -> None:
    memo: dict[str, object] = {}
    accumulate(memo, SCOPE, slices(100), ())
    wide, _ = accumulate(memo, replace(SCOPE, increase=0.5), slices(100), ())
    assert wide.thresholds[0].canary != added(slices(100), 100.0).thresholds[0].canary
    assert sorted(memo) == ["load-adjusted 0.15", "load-adjusted 0.5"]
    later, _ = accumulate(memo, replace(SCOPE, begin=90.0), slices(100), ())
    assert later.evidence.blocks == 6
    memo["load-adjusted 0.15"] = "of another version"
    assert accumulate(memo, SCOPE, slices(100), ())[0].evidence == added(slices(100), 100.0).evidence


def test_without_new_slices_the_sums_stay() -> None:
    memo: dict[str, object] = {}
    before = accumulate(memo, SCOPE, slices(100), ())
    assert accumulate(memo, SCOPE, slices(100), ()) == before
    assert accumulate(memo, SCOPE, [], ())[0].evidence == added(slices(100), 78.0).evidence, (
        "the others may still change"
    )


LOGS = tuple(-float(place) for place in range(37))
TIMES_SO_FAR = (
    BaselineRecord("c", "relative ttft", "a", {"5": 3}),
    BaselineRecord("c", "suspect relative ttft", "a", {"5": 2}),
    BaselineRecord("c", "suspect unmeasured", "b", {"9": 1}),
)
RECORD = EvidenceRecord("s", "c", 0.15, 40.0, 4, LOGS, TIMES_SO_FAR)


def test_an_operator_goes_on_with_the_record_of_the_one_before_it() -> None:
    other, unread = replace(RECORD, canary="other", blocks=9), BaselineRecord("c", "relative ttft", "z", {"x": 1})
    known = replace(RECORD, times=(*TIMES_SO_FAR, unread))
    sums, record = accumulate({}, SCOPE, [piece("s", 36.0, {1: 1}), piece("c", 40.0, SLOW)], (other, known))
    assert (sums.evidence.logs, sums.evidence.blocks, sums.until) == (LOGS, 4, 40.0)
    assert sums.canary == {"a": {5: 3}, "z": {}}
    assert (sums.suspects.measured, sums.suspects.unmeasured) == ({"a": {5: 2}}, {"b": {9: 1}})
    assert record == RECORD, "what could be read is written again"


@pytest.mark.parametrize(
    ("record", "used"),
    [
        (replace(RECORD, newest=30.0), True),
        (replace(RECORD, newest=29.5), False),
        (replace(RECORD, blocks=0), True),
        (replace(RECORD, blocks=-1), False),
        (replace(RECORD, logs=LOGS[1:]), False),
        (replace(RECORD, stable="t"), False),
        (replace(RECORD, canary="d"), False),
        (replace(RECORD, increase=0.2), False),
    ],
)
def test_a_record_of_another_rollout_or_version_is_not_used(record: EvidenceRecord, used: bool) -> None:
    sums, _ = accumulate({}, SCOPE, [], (record,))
    assert (sums.evidence.logs == LOGS) is used and (sums.canary == {"a": {5: 3}}) is used


def test_a_record_has_120_buckets_of_a_stratum_at_most_in_the_order_of_their_names() -> None:
    def wide(start: float, buckets: int) -> Slice:
        load = {
            name: LoadCounts(dict.fromkeys(range(1, own + 1), 1))
            for name, own in (("b", buckets), ("a", 120), ("c", 0))
        }
        return Slice("g", start, 2.0, "c", "", 0, 0, load=load)

    for buckets, expected in ((120, 120), (121, 61)):
        pieces = [wide(30.0, buckets), piece("s", 38.0, {}), piece("s", 70.0, {})]
        _, record = accumulate({}, SCOPE, pieces, ())
        assert [(entry.stratum, len(entry.histogram)) for entry in record.times] == [("a", 120), ("b", expected)]
