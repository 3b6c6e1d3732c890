"""Protects the judgement of a latency against the concurrent stable: what convicts, what is only suspicious, what is missing for a
verdict, how requests without an answer and coarse buckets count, and the numbers and the sentence of the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis import latency
from pagefleet_operator.domain.analysis.accumulate import SignalTest, StratumSums
from pagefleet_operator.domain.analysis.latency import ABOVE_LAST_EDGE, REGRESSION
from pagefleet_operator.domain.analysis.paired import PRIOR_DISPERSION, BlockCounts
from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict
from pagefleet_operator.domain.base.edged import Edged
from pagefleet_operator.domain.spec.rollout import LatencyGuard
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.status import SignalRecord

GUARD = LatencyGuard("ttft", 0.95, 0.15, 0.99, 100)
LEVEL, NEEDED = 0.01, math.log(100)
QUICK = sketch.bucket_of(0.1)
BARELY, SLOWER, SLOW = QUICK + 7, QUICK + 8, QUICK + 35  # 14.9 %, 17.2 % and 100 % slower
QUICK_SECONDS, SLOW_SECONDS = sketch.upper(QUICK), sketch.upper(SLOW)
NO_TOTAL = BlockCounts(0, 0, 0, 0)


def stratum(stable: Mapping[int, int], canary: Mapping[int, int], log: float = 0.0, total: BlockCounts = NO_TOTAL,
            ages: tuple[Mapping[int, int], Mapping[int, int]] = ({}, {})) -> StratumSums:  # fmt: skip
    """A stratum with this logarithm of the evidence, from one block of which few hits are known."""
    sums = StratumSums(latency.signal_test(GUARD, LEVEL))
    sums.stable, sums.canary, sums.unmeasured = dict(stable), dict(canary), (dict(ages[0]), dict(ages[1]))
    sums.test.blocks, sums.test.total = [BlockCounts(1, 1, 0, 0)], total
    sums.test.logs = [log * PRIOR_DISPERSION if log > 0 else log] * len(sums.test.logs)
    return sums


def unknown(stable: Mapping[int, int], canary: Mapping[int, int], blind: bool = False) -> StratumSums:
    """A stratum in which no block could be judged."""
    sums = stratum(stable, canary)
    sums.test.blocks, sums.test.blind = [], blind
    return sums


def judged(*strata: StratumSums, elapsed: float = 60.0, guard: LatencyGuard = GUARD, level: float = LEVEL) -> Verdict:
    return latency.judge_concurrent(guard, {f"s{place}": one for place, one in enumerate(strata)}, level, elapsed)


def piece(start: float, revision: str, histogram: dict[int, int]) -> Slice:
    return Slice("g", start, 4.0, revision, "s0", sketch.total(histogram), 0, latency={"ttft": histogram})


def measured(blocks: int) -> StratumSums:
    """So many blocks with a hit in 2 of 100 requests of the stable and in 50 of 100 of the canary, and one that is open."""
    sums = StratumSums(latency.signal_test(GUARD, LEVEL))
    sums.add(piece(0.0, "old", {QUICK: 100}), of_canary=False)
    for number in range(blocks + 1):
        start = 30.0 + 4 * number
        sums.add(piece(start, "old", {QUICK: 98, SLOW: 2}), of_canary=False)
        sums.add(piece(start, "new", {QUICK: 50, SLOW: 50}), of_canary=True)
    return sums


def test_a_block_adds_a_quarter_of_what_convicts_at_most() -> None:
    assert latency.signal_test(GUARD, LEVEL) == SignalTest("ttft", 0.95, 0.15, NEEDED / 4)


def test_a_canary_that_is_slower_in_every_block_is_convicted_by_the_ninth() -> None:
    """All blocks add as much as they may. Their sum is divided by the dispersion that is assumed of few blocks."""
    verdict = judged(measured(9))
    record, (shown,) = verdict.record, verdict.signals
    assert (verdict.outcome, verdict.reason, record.expected_seconds) == (Outcome.REGRESSED, "LatencyRegression", None)
    assert math.log(record.evidence) == pytest.approx(9 * NEEDED / 4 / PRIOR_DISPERSION)
    assert record.message == (
        "canary ttft p95 201 ms, stable 100 ms, +100%, limit +15%, 1000 requests; 50.0% of them are slower than 115 ms, "
        "expected 2.0% (evidence 178)"
    )
    assert (record.signal, record.samples, record.statistic, record.limit) == ("ttft p95", 1000, 0.5, 0.02)
    assert record.bound_seconds == pytest.approx(1.15 * QUICK_SECONDS)
    assert (record.stable_seconds, record.canary_seconds) == (QUICK_SECONDS, SLOW_SECONDS)
    assert (shown.signal, shown.stratum, shown.outcome) == ("ttft", "s0", "Regressed")
    assert (shown.stable_samples, shown.canary_samples, shown.evidence) == (1100, 1000, record.evidence)
    assert shown.message == f"a hit is {(9 * 25 + 0.5) / (9 * 1 + 0.5):.2f} times as likely on the canary"


def test_before_that_it_is_suspicious_until_about_as_much_traffic_more() -> None:
    """Seven blocks are 7/8 of the evidence, so that a seventh of the time is missing."""
    verdict = judged(measured(7), elapsed=70.0)
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, "")
    assert verdict.record.expected_seconds == pytest.approx(10.0)
    assert verdict.record.message.startswith("suspicious, not proven: canary ttft p95 201 ms, stable 100 ms, +100%")
    assert [shown.outcome for shown in verdict.signals] == ["Inconclusive"]


MANY = {QUICK: 100}


@pytest.mark.parametrize(
    ("canary", "log", "outcome"),
    [
        (MANY, -3.0, Outcome.PASSED),
        (MANY, NEEDED + 1, Outcome.PASSED),  # one outlier, however large, never decides
        ({BARELY: 100}, NEEDED + 1, Outcome.PASSED),
        ({SLOWER: 100}, NEEDED + 1, Outcome.REGRESSED),
        ({SLOWER: 100}, NEEDED - 0.01, Outcome.INCONCLUSIVE),
        ({SLOWER: 100}, 0.0, Outcome.INCONCLUSIVE),
        ({SLOWER: 100}, -0.01, Outcome.PASSED),
        ({SLOWER: 20}, NEEDED + 1, Outcome.REGRESSED),  # the evidence is as good from a few requests
        ({QUICK: 99}, -3.0, Outcome.INCONCLUSIVE),
    ],
)
def test_a_conviction_needs_evidence_and_a_quantile_above_the_bound(
    canary: Mapping[int, int], log: float, outcome: Outcome
) -> None:
    verdict = judged(stratum(MANY, canary, log))
    assert (verdict.outcome, verdict.record.outcome) == (outcome, outcome.value)
    assert verdict.reason == (REGRESSION if outcome is Outcome.REGRESSED else "")
    assert verdict.record.evidence == pytest.approx(math.exp(log))
    assert len(verdict.signals) == 1


def test_evidence_of_exactly_the_confidence_convicts() -> None:
    sums = stratum(MANY, {SLOW: 100}, math.log(4.0))
    value = judged(sums).record.evidence
    assert math.log(1 / (1 / value)) == math.log(value)
    verdict = judged(sums, level=1 / value)
    assert verdict.outcome is Outcome.REGRESSED and verdict.signals[0].outcome == "Regressed"


@pytest.mark.parametrize(("log", "wait"), [(NEEDED / 10, 540.0), (0.0, None)])
def test_a_suspicion_ends_when_the_evidence_has_grown_as_before(log: float, wait: float | None) -> None:
    verdict = judged(stratum(MANY, {SLOW: 100}, log), elapsed=60.0)
    assert verdict.record.message.startswith("suspicious, not proven: ")
    assert verdict.record.expected_seconds == (None if wait is None else pytest.approx(wait))


@pytest.mark.parametrize(
    ("stable", "canary", "log", "outcome"),
    [
        ({QUICK: 1}, {QUICK: 100}, -0.01, "Passed"),
        ({QUICK: 1}, {QUICK: 100}, 0.0, "Inconclusive"),
        ({QUICK: 1}, {QUICK: 99}, -0.01, "Inconclusive"),
        ({}, {QUICK: 100}, -0.01, "Inconclusive"),
        ({QUICK: 1}, {QUICK: 1}, NEEDED + 0.01, "Regressed"),
        ({QUICK: 1}, {QUICK: 100}, NEEDED - 0.01, "Inconclusive"),
    ],
)
def test_a_stratum_is_shown_with_what_it_says_by_itself(
    stable: Mapping[int, int], canary: Mapping[int, int], log: float, outcome: str
) -> None:
    assert judged(stratum(stable, canary, log), stratum(MANY, MANY)).signals[0].outcome == outcome


def test_the_evidence_of_the_strata_multiplies_and_one_slow_stratum_is_enough() -> None:
    strata = stratum(MANY, MANY, 0.5 * NEEDED), stratum(MANY, {SLOW: 30}, 0.5 * NEEDED + 0.1)
    assert judged(*strata).outcome is Outcome.REGRESSED
    assert judged(strata[0], strata[0]).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("strata", "words", "wait"),
    [
        ([], "0 of the 100 requests needed", None),
        ([stratum(MANY, {})], "0 of the 100 requests needed", None),
        ([stratum(MANY, {QUICK: 50}), stratum(MANY, {QUICK: 25})], "75 of the 100 requests needed", 20.0),
        ([unknown({QUICK: 10}, MANY)], "the stable has fewer than the 40 concurrent requests needed", None),
        ([unknown(MANY, MANY, blind=True)], ABOVE_LAST_EDGE, None),
        ([unknown(MANY, MANY, blind=True), stratum(MANY, MANY, -1.0)], ABOVE_LAST_EDGE, None),
    ],
)
def test_a_verdict_says_what_it_is_waiting_for(strata: list[StratumSums], words: str, wait: float | None) -> None:
    verdict = judged(*strata)
    assert (verdict.outcome, verdict.record.message) == (Outcome.INCONCLUSIVE, f"ttft p95: {words}")
    assert verdict.record.expected_seconds == wait and len(verdict.signals) == len(strata)


def test_a_stratum_that_cannot_be_judged_yet_does_not_hold_up_the_others() -> None:
    assert judged(unknown({QUICK: 10}, {QUICK: 1}), stratum(MANY, MANY, -1.0)).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("signal", "count", "have", "answer"), [("ttft", 20, "have", "first token"), ("e2e", 1, "has", "whole answer")]
)
def test_requests_that_wait_for_longer_than_the_bound_count_as_slow(
    signal: str, count: int, have: str, answer: str
) -> None:
    """Seven of the canary's are too young for that: the bound lies in their bucket."""
    sums = stratum(MANY, {QUICK: 80, SLOW: 4}, NEEDED + 1, ages=({}, {SLOWER: 7, SLOWER + 1: count}))
    verdict = judged(sums, guard=replace(GUARD, signal=signal))
    assert verdict.outcome is Outcome.REGRESSED
    assert (verdict.record.samples, verdict.record.canary_seconds) == (84 + count, sketch.upper(SLOWER + 1))
    assert verdict.record.message.endswith(f"; {count} of them {have} waited for longer without a {answer}")


def test_the_stable_s_requests_that_wait_raise_the_bound() -> None:
    """Ten of the stable's have waited for longer than its quantile, which so becomes their age."""
    ages = {QUICK: 50, SLOW: 10}, {SLOW + 8: 20, SLOW + 9: 1}
    (shown,) = judged(stratum({QUICK: 100}, {QUICK: 100}, ages=ages)).signals
    assert (shown.stable_samples, shown.stable_p95, shown.canary_samples) == (110, SLOW_SECONDS, 101)


def test_without_a_measurement_of_the_stable_nothing_is_slow() -> None:
    (shown,) = judged(stratum({}, {QUICK: 100}, ages=({SLOW: 5}, {SLOW: 5}))).signals
    assert (shown.stable_samples, shown.stable_p95, shown.canary_samples) == (0, None, 100)


def test_the_shares_are_of_the_compared_requests_and_the_times_of_the_largest_stratum() -> None:
    small = stratum({SLOW: 300}, {SLOW: 40}, -1.0, BlockCounts(300, 30, 3, 3))
    large = stratum({QUICK: 200}, {BARELY: 80}, -1.0, BlockCounts(100, 70, 5, 2))
    for strata in ((small, large), (large, small)):
        record = judged(*strata).record
        assert (record.samples, record.statistic, record.limit) == (120, 5 / 100, 8 / 400)
        assert (record.stable_seconds, record.canary_seconds) == (QUICK_SECONDS, sketch.upper(BARELY))
        assert record.bound_seconds == pytest.approx(1.15 * QUICK_SECONDS)


def test_what_is_not_known_is_left_out() -> None:
    for record in (judged().record, judged(stratum({}, {})).record):
        assert (record.statistic, record.limit, record.bound_seconds) == (0.0, 0.0, None)
        assert (record.stable_seconds, record.canary_seconds) == (None, None)


def edged(canary: Mapping[int, int], bound: float | None, threshold: float) -> StratumSums:
    sums = stratum(MANY, canary, -1.0)
    sums.edged, sums.test.bound, sums.test.threshold = True, bound, threshold
    return sums


def test_a_canary_is_held_to_an_edge_of_the_largest_stratum_s_histogram() -> None:
    small, large = edged({QUICK: 10}, 0.5, 0.4), edged({QUICK: 100}, 0.15, 0.1)
    for strata in ((small, large), (large, small)):
        record = judged(*strata).record
        assert record.bound_seconds == 0.15
        assert ", limit +15%, +50% by the histogram's edges, 110 requests" in record.message
    fine = edged({QUICK: 100}, 0.15, 0.1)
    fine.edged = False
    for sums in (fine, edged(MANY, None, 0.1), edged(MANY, 0.0, 0.0)):
        record = judged(sums).record
        assert record.bound_seconds == pytest.approx(1.15 * QUICK_SECONDS) and "edges" not in record.message


def test_an_engine_s_own_buckets_give_the_edge() -> None:
    sums = StratumSums(latency.signal_test(GUARD, LEVEL))
    for number in range(3):
        for of_canary in (False, True):
            own = replace(piece(4.0 * number, "r", {QUICK: 50}), edged={"ttft": Edged((0.2, 0.3, math.inf), {0: 50})})
            sums.add(own, of_canary)
    record = judged(sums).record
    assert record.bound_seconds == 0.3 and "+50% by the histogram's edges" in record.message


def signal(stable: float | None, canary: float | None) -> SignalRecord:
    return SignalRecord("ttft", "", "", stable_p95=stable, canary_p95=canary)


@pytest.mark.parametrize(
    ("signals", "increase", "slower"),
    [
        ([(0.5, 0.5)], 0.0, False),  # exactly the bound
        ([(0.5, 0.51)], 0.0, True),
        ([(0.5, 0.57)], 0.15, False),
        ([(0.5, 0.58)], 0.15, True),
        ([(0.5, 0.5), (0.5, 0.9)], 0.15, True),
        ([(None, 0.5)], 0.15, False),
        ([(0.5, None)], 0.15, False),
        ([], 0.15, False),
    ],
)
def test_a_canary_is_slower_when_its_quantile_is_above_the_bound_somewhere(
    signals: list[tuple[float | None, float | None]], increase: float, slower: bool
) -> None:
    guard = replace(GUARD, max_increase=increase)
    assert latency.is_slower(guard, [signal(*one) for one in signals]) is slower


def test_a_stratum_shows_the_quantiles_and_intervals_of_both_revisions() -> None:
    """100 requests, each in a bucket of its own. The 95 % quantile's interval runs from rank 90 to 100."""
    stable, canary = dict.fromkeys(range(1, 101), 1), dict.fromkeys(range(201, 301), 1)
    shown = latency.signal_record(GUARD, "long", stable, canary, None)
    values = [
        (shown.stable_p50, shown.stable_p95, shown.stable_low, shown.stable_high),
        (shown.canary_p50, shown.canary_p95, shown.canary_low, shown.canary_high),
    ]
    ranks = (50, 95, 90, 100)
    assert values == [tuple(sketch.upper(first + rank) for rank in ranks) for first in (0, 200)]
    assert (shown.signal, shown.stratum, shown.outcome) == ("ttft", "long", "")
    assert (shown.stable_samples, shown.canary_samples) == (100, 100)
    assert (shown.evidence, shown.message) == (0.0, "")


def test_a_stratum_without_requests_or_blocks_shows_none() -> None:
    shown = latency.signal_record(GUARD, "long", {}, {}, unknown({}, {}).test)
    assert shown == SignalRecord("ttft", "long", "", evidence=1.0)


@pytest.mark.parametrize(
    ("stable", "canary", "words"),
    [
        (0.25, 0.2, "canary ttft p95 200 ms, stable 250 ms, -20%, limit +15%, 0 requests"),
        (0.25, 0.0, "canary ttft p95 0 ms, stable 250 ms, -100%, limit +15%"),
        (0.0, 0.2, "canary ttft p95 200 ms, stable 0 ms, limit +15%"),
        (None, 0.2, "canary ttft p95 200 ms, stable unknown, limit +15%"),
        (0.25, None, "canary ttft p95 unknown, stable 250 ms, limit +15%"),
    ],
)
def test_the_sentence_tells_the_increase_where_both_times_are_known(
    stable: float | None, canary: float | None, words: str
) -> None:
    record = replace(judged().record, stable_seconds=stable, canary_seconds=canary)
    sentence = latency.sentence_of(GUARD, record)
    assert sentence.startswith(words) and "are slower than unknown, expected 0.0% (evidence 1)" in sentence
