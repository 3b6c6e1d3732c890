"""Protects the judgement of a promoted revision by the record of the one before it: which records and requests are compared, that slow requests
of one minute convict nobody, and that requests in flight and coarse buckets count as what they are."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis import after_promotion, sequential
from pagefleet_operator.domain.analysis.latency import ABOVE_LAST_EDGE, REGRESSION
from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict
from pagefleet_operator.domain.base.edged import Edged
from pagefleet_operator.domain.spec.rollout import LatencyGuard
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.status import BaselineRecord

QUICK, LATE, SLOW = (sketch.bucket_of(seconds) for seconds in (0.1, 0.15, 0.5))
GUARD = LatencyGuard("ttft", 0.95, 0.15, 0.99, 100)
LEVEL = 0.01
BOUND = 1.15 * sketch.upper(QUICK)


def recorded(count: int = 1000, **more: object) -> BaselineRecord:
    made = BaselineRecord("old", "ttft", "short", {str(QUICK): count}, source="gateway")
    return replace(made, **more)  # type: ignore[arg-type]


def piece(minute: float, bucket: int, count: int = 20, stratum: str = "short", **more: object) -> Slice:
    made = Slice("g", 60.0 * minute, 2.0, "new", stratum, count, 0, latency={"ttft": {bucket: count}})
    return replace(made, **more)  # type: ignore[arg-type]


def judged(*pieces: Slice, baseline: BaselineRecord | None = None) -> Verdict:
    return after_promotion.judge(GUARD, [baseline or recorded()], pieces, LEVEL)


def test_slow_requests_of_four_minutes_convict() -> None:
    verdict = judged(*(piece(minute, SLOW) for minute in range(4)))
    assert (verdict.outcome, verdict.reason) == (Outcome.REGRESSED, REGRESSION)
    record = verdict.record
    assert record.limit == pytest.approx(0.05) and (record.statistic, record.samples) == (1.0, 80)
    assert record.bound_seconds == pytest.approx(BOUND)
    assert record.evidence == pytest.approx(sequential.e_value(sequential.Evidence(80, 80), 1 - 0.95))
    (shown,) = verdict.signals
    assert (shown.stratum, shown.stable_samples, shown.canary_samples) == ("short", 1000, 80)


def test_slow_requests_of_fewer_minutes_are_suspicious() -> None:
    verdict = judged(*(piece(minute, SLOW) for minute in (0, 0.1, 1, 2, 2.9)), piece(3, QUICK), piece(4, QUICK))
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, "")
    assert verdict.record.message.startswith("suspicious, not proven: canary ttft p95 ")
    assert verdict.record.message.endswith("; slow requests lie in 3 of the 4 minutes needed")
    assert len(verdict.signals) == 1


def test_the_evidence_must_be_twice_as_rare_as_the_level() -> None:
    """Half of the level is spent on the record's own quantile."""

    def value(quick: int) -> float:
        return sequential.e_value(sequential.Evidence(8, 8 + quick), 1 - 0.95)

    enough = max(quick for quick in range(200) if value(quick) >= 200)
    assert value(enough) < 300 and value(enough + 1) > 150
    for quick, minutes in itertools.product((enough, enough + 1), (4, 2)):
        slow = [piece(minute, SLOW, 8 // minutes) for minute in range(minutes)]
        found = judged(*slow, piece(9, QUICK, quick))
        assert found.record.evidence == pytest.approx(value(quick))
        assert (found.outcome is Outcome.REGRESSED) is (quick == enough and minutes == 4)
        assert ("suspicious, not proven" in found.record.message) is (quick == enough and minutes == 2)


def test_a_revision_that_is_as_fast_passes() -> None:
    verdict = judged(piece(0, QUICK), piece(1, QUICK))
    assert (verdict.outcome, verdict.reason, verdict.record.statistic) == (Outcome.PASSED, "", 0.0)
    assert verdict.record.message.startswith("canary ttft p95 ") and len(verdict.signals) == 1


def test_much_evidence_at_a_quantile_that_is_no_slower_passes() -> None:
    """Two in a hundred are slow, and 1 % may be: the 95 % quantile is not."""
    guard = replace(GUARD, quantile=0.95)
    pieces = [one for minute in range(10) for one in (piece(minute, SLOW, 4), piece(minute, QUICK, 96))]
    assert after_promotion.judge(guard, [recorded()], pieces, LEVEL).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("baseline", "compared"),
    [
        (recorded(), True),
        (recorded(source=""), True),  # of an older operator
        (recorded(source="engine"), False),
        (recorded(signal="e2e"), False),
        (recorded(stratum="long"), False),
        (recorded(117), True),  # the smallest record whose largest value bounds its quantile
        (recorded(116), False),
    ],
)
def test_what_can_be_compared(baseline: BaselineRecord, compared: bool) -> None:
    assert sequential.min_samples(0.95, LEVEL / 2) == 117
    verdict = judged(piece(0, QUICK), baseline=baseline)
    assert (verdict.outcome is Outcome.PASSED) is compared
    if not compared:
        assert verdict.record.message == (
            "ttft p95: no requests yet that can be compared with the previous revision's record"
        )
        assert (verdict.record.bound_seconds, verdict.record.statistic) == (None, 0.0)
        assert len(verdict.signals) == (baseline.histogram == {str(QUICK): 116})


def test_the_bound_is_of_the_upper_end_of_what_the_records_quantile_may_be() -> None:
    spread = dict.fromkeys(range(QUICK - 150, QUICK + 250), 1)
    baseline = recorded(histogram={str(bucket): count for bucket, count in spread.items()})
    rank = sequential.upper_rank(400, 0.95, LEVEL / 2)
    assert rank not in {sequential.upper_rank(400, 0.95, level) for level in (LEVEL * 2, LEVEL / 3)}
    expected = sketch.rank(spread, rank)
    assert expected is not None
    found = judged(piece(0, QUICK), baseline=baseline).record
    assert found.bound_seconds == pytest.approx(1.15 * expected)


def test_every_stratum_has_its_own_bound_and_all_count_together() -> None:
    long = recorded(stratum="long", histogram={str(SLOW): 1000})
    counts = {"short": 10, "long": 30, "other": 50}
    pieces = [piece(minute, SLOW, count, stratum) for minute in range(4) for stratum, count in counts.items()]
    verdict = after_promotion.judge(GUARD, [recorded(), long], pieces, LEVEL)
    assert verdict.record.statistic == 0.25
    assert [one.stratum for one in verdict.signals] == ["long", "short"]
    assert verdict.record.bound_seconds == pytest.approx(BOUND)


def test_requests_in_flight_and_those_that_left_are_slow_when_they_are_older_than_the_bound() -> None:
    waiting = piece(0, QUICK, 10, in_flight={"ttft": {LATE: 3}}, unmeasured={"ttft": {LATE: 2, QUICK: 9}})
    later = piece(1, QUICK, 10, in_flight={"ttft": {LATE: 3}})
    assert judged(waiting, later).record.statistic == pytest.approx(5 / 25)
    (shown,) = judged(waiting, later).signals
    assert shown.canary_samples == 25 and shown.canary_p95 is not None and shown.canary_p95 > BOUND


def test_coarse_buckets_count_what_is_surely_above_and_their_end_blinds() -> None:
    def edged(edges: tuple[float, ...], **counts: int) -> Slice:
        places = {int(place.removeprefix("place")): count for place, count in counts.items()}
        return piece(0, SLOW, sum(counts.values()), edged={"ttft": Edged((*edges, math.inf), places)})

    good = judged(edged((0.1, 0.2, 1.0), place0=10, place1=10))
    assert (good.outcome, good.record.statistic) == (Outcome.PASSED, 0.0)
    assert judged(edged((0.1, 0.2, 1.0), place0=10, place2=10)).record.statistic == 0.5
    blind = judged(edged((0.05, 0.1), place0=10, place2=10))
    assert (blind.outcome, blind.record.message) == (Outcome.INCONCLUSIVE, f"ttft p95: {ABOVE_LAST_EDGE}")
    assert len(blind.signals) == 1
