"""Protects the verdict on the time to first token at equal load, by numbers computed by hand: what convicts, what passes, what is only
suspicious, how many requests a verdict still needs, and the sentences that say so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.load_slices import KNOWN, piece

from pagefleet_contract.sketch import upper
from pagefleet_contract.strata import FREE_STRATA
from pagefleet_operator.domain.analysis.adjusted.accumulated import Accumulated, AdjustedScope, Earlier
from pagefleet_operator.domain.analysis.adjusted.alternatives import COUNT, ODDS, SEVERE, THRESHOLDS
from pagefleet_operator.domain.analysis.adjusted.onsets import FLOOR, OnsetMixture
from pagefleet_operator.domain.analysis.adjusted.suspects import Suspects
from pagefleet_operator.domain.analysis.equal_load import Judged, can_judge, judge
from pagefleet_operator.domain.analysis.verdict import SUSPICIOUS, Outcome, Verdict
from pagefleet_operator.domain.spec.rollout import LatencyGuard
from pagefleet_operator.domain.status.observation import Slice

OTHER = FREE_STRATA[7]
SCOPE = AdjustedScope("s", "c", begin=30.0, warm_up=0, increase=0.15)
ENTRY = LatencyGuard("ttft", 0.75, 0.15, 0.99, 50)
LEVEL, NEEDED = 0.01, math.log(100)
# The 75 % quantile is in bucket 100, and the 95 % quantile in bucket 150.
STABLE = {100: 60, 101: 10, 130: 5, 150: 5}
SUSPECT = {KNOWN: {120: 10}}


def ranks(step: int) -> dict[int, int]:
    """Requests whose 75 % quantile is so many buckets above the stable's; its interval runs from two buckets below to four above."""
    return {98 + step: 70, 100 + step: 10, 104 + step: 20}


def learned(canary: Mapping[int, int], log: float = FLOOR, place: int = SEVERE, waiting: Mapping[int, int] | None = None,
            stratum: str = KNOWN, stable: Mapping[int, int] = STABLE) -> Accumulated:  # fmt: skip
    """Sums whose evidence has this logarithm and is all for one alternative. Of the thresholds 1, 2, ... of 100 requests are hits."""
    sums = Accumulated(SCOPE)
    sums.add(0.0, [piece("s", 0.0, stable)])
    sums.add(30.0, [piece("c", 30.0, canary, waiting, stratum)])
    logs = [FLOOR] * COUNT
    logs[place] = log
    sums.evidence, sums.suspects = OnsetMixture(tuple(logs)), Suspects()
    sums.hits = [(100.0, 1.0 + number) for number in range(THRESHOLDS)]
    sums.seconds = {}, {}
    return sums


def judged(sums: Accumulated, entry: LatencyGuard = ENTRY, level: float = LEVEL, elapsed: float = 60.0) -> Verdict:
    return judge(Judged(sums, entry, level, elapsed))


def adjusted(revision: str) -> Slice:
    return piece(revision, 0.0, {100: 1})


def counted(revision: str) -> Slice:
    return Slice("g", 0.0, 2.0, revision, KNOWN, 5, 0)


@pytest.mark.parametrize(
    ("slices", "can"),
    [
        ([counted("s"), adjusted("s"), counted("s")], True),
        ([adjusted("c"), counted("s")], False),
        ([counted("s")], False),
        ([], False),
    ],
)
def test_times_are_compared_at_equal_load_once_the_gateways_adjust_the_stable_s(slices: list[Slice], can: bool) -> None:
    assert can_judge(slices, "s") is can


@pytest.mark.parametrize(
    ("step", "log", "outcome"),
    [
        (0, -3.0, Outcome.PASSED),
        (3, -3.0, Outcome.PASSED),  # the interval's upper end is 1.1487
        (4, -3.0, Outcome.INCONCLUSIVE),
        (0, math.log(SUSPICIOUS) - 1e-9, Outcome.PASSED),
        (0, math.log(SUSPICIOUS), Outcome.INCONCLUSIVE),
    ],
)
def test_a_canary_passes_when_its_interval_lies_below_what_is_accepted_and_nothing_is_suspicious(
    step: int, log: float, outcome: Outcome
) -> None:
    verdict = judged(learned(ranks(step), log))
    assert (verdict.outcome, verdict.reason, verdict.record.expected_seconds is None) == (outcome, "", step < 4)


def test_an_interval_that_ends_at_what_is_accepted_does_not_pass() -> None:
    verdict = judged(learned({100: 100}), replace(ENTRY, max_increase=0.0))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.record.message == (
        "canary ttft p75 is 1.00 times the stable's at equal load, 1.00 to 1.00; 0% more accepted; 100 requests; "
        "it passes when more requests show less"
    )


def test_the_sentence_of_a_canary_that_passes() -> None:
    """Of 1,000 requests the interval's ends are 22.5 ranks away from rank 750."""
    sums = learned({99: 730, 101: 40, 105: 230}, -3.0)
    assert judged(sums).record.message == (
        "canary ttft p75 is 1.02 times the stable's at equal load, 0.98 to 1.10; 15% more accepted; 1,000 requests"
    )
    sums.seconds = {500: 75, 600: 25}, {510: 75, 600: 25}
    assert ", 0.98 to 1.10 (canary 2433 ms, stable 1996 ms); 15% more accepted" in judged(sums).record.message
    for seconds in (({350: 1}, {}), ({}, {350: 1})):
        sums.seconds = seconds
        assert ", 0.98 to 1.10; 15% more accepted" in judged(sums).record.message


@pytest.mark.parametrize(
    ("log", "suspects", "increase", "convicts"),
    [
        (NEEDED, SUSPECT, 0.15, True),
        (NEEDED - 1e-9, SUSPECT, 0.15, False),
        (NEEDED, {KNOWN: {107: 10}}, 0.15, False),  # 14.9 % slower
        (NEEDED, {KNOWN: {108: 10}}, 0.15, True),
        (NEEDED, {KNOWN: {100: 10}}, 0.0, False),  # exactly what is accepted
        (NEEDED, {}, 0.15, True),
        (NEEDED, {OTHER: {120: 10}}, 0.15, True),  # the stable has not been measured there
    ],
)
def test_evidence_convicts_unless_the_quantile_since_it_grew_is_known_to_be_accepted(
    log: float, suspects: dict[str, dict[int, int]], increase: float, convicts: bool
) -> None:
    sums = learned(ranks(0), log)
    sums.suspects = Suspects(suspects)
    verdict = judged(sums, replace(ENTRY, max_increase=increase))
    assert verdict.outcome is (Outcome.REGRESSED if convicts else Outcome.INCONCLUSIVE)
    assert verdict.reason == ("LatencyRegression" if convicts else "")
    assert verdict.record.message.startswith("suspicious, not proven: ") is (not convicts and increase > 0)


@pytest.mark.parametrize(("waiting", "ended"), [({200: 4}, {}), ({}, {200: 4}), ({200: 2}, {200: 2})])
def test_requests_without_a_first_token_are_slow_since_the_evidence_grew(
    waiting: dict[int, int], ended: dict[int, int]
) -> None:
    """Four of ten are, so that the 75 % quantile is theirs."""
    sums = learned(ranks(0), NEEDED, waiting=waiting)
    sums.suspects = Suspects({KNOWN: {100: 6}}, {OTHER: ended} if ended else {})
    assert judged(sums).outcome is Outcome.REGRESSED
    few = learned(ranks(0), NEEDED)
    few.suspects = Suspects({KNOWN: {100: 6}})
    assert judged(few).outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (0, "1% of them are slower than 1.15 times the stable's p50, expected 50.0%"),
        (1, "2% of them are slower than 1.15 times the stable's p75, expected 25.0%"),
        (4, "5% of them are slower than 1.15 times the stable's p99, expected 1.0%"),
        (5, "6% of them are slower than 1.5 times the stable's p95, expected 2.4%"),
        (8, "9% of them are slower than 10 times the stable's p95, expected 2.4%"),
    ],
)
def test_the_threshold_with_the_most_evidence_is_named(place: int, words: str) -> None:
    """None of the 80 requests is beyond a multiple: the share there is 2 of 82."""
    sums = learned(ranks(0), NEEDED + 1, place * len(ODDS))
    assert judged(sums).record.message == (
        "canary ttft p75 is 1.00 times the stable's at equal load, 0.96 to 1.08; 15% more accepted; 100 requests; "
        f"{words} (evidence 272)"
    )
    sums.suspects = Suspects({KNOWN: {100: 10}})
    verdict = judged(sums)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.record.message.endswith(f"100 requests; {words} (evidence 272)")
    sums.hits = [(0.0, 0.0)] * THRESHOLDS
    assert words.replace(f"{place + 1}% of", "too many of") in judged(sums).record.message


def test_what_convicts_late_is_stated_of_the_requests_since_it_began() -> None:
    """The whole rollout's 1,000 requests are no slower. Of the last ten two are beyond 1.5 times the 95 % quantile, and one waits."""
    sums = learned({98: 700, 100: 100, 104: 200}, NEEDED + 1, 5 * len(ODDS), waiting={180: 1})
    sums.suspects = Suspects({KNOWN: {120: 8, 172: 2}})
    assert judged(sums).record.message.endswith(
        "; 1,000 requests; 1 has waited for longer without a first token; 4.16 times in the 10 requests since the evidence "
        "began to grow; 27% of them are slower than 1.5 times the stable's p95, expected 2.4% (evidence 272)"
    )


def test_evidence_of_an_earlier_operator_convicts_nobody_before_the_stable_is_known() -> None:
    """The thresholds that would be named are not known either."""
    logs = (NEEDED + 1, *(FLOOR,) * (COUNT - 1))
    earlier = Earlier(30.0, OnsetMixture(logs, 9), {KNOWN: ranks(9)}, Suspects(SUSPECT))
    sums = Accumulated(SCOPE, earlier)
    sums.add(32.0, [piece("s", 32.0, {100: 40}), piece("s", 32.0, {100: 9}, stratum=OTHER)])
    verdict = judged(sums)
    assert (verdict.outcome, verdict.record.expected_seconds) == (Outcome.INCONCLUSIVE, None)
    assert verdict.record.message == "ttft p75: the stable has 49 of the 50 measured requests needed"


@pytest.mark.parametrize(
    ("requests", "words", "wait"),
    [
        (0, "0 of the 50 requests needed", None),
        (1, "1 of the 50 requests needed", 2940.0),
        (40, "40 of the 50 requests needed", 15.0),
    ],
)
def test_a_canary_with_few_requests_waits_for_more(requests: int, words: str, wait: float | None) -> None:
    verdict = judged(learned({100: requests} if requests else {}))
    assert (verdict.outcome, verdict.record.message) == (Outcome.INCONCLUSIVE, f"ttft p75: {words}")
    assert verdict.record.expected_seconds == wait
    assert judged(learned({100: 50})).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("canary", "more"),
    [
        ({100: 6}, 27),  # 7/8 of the stable's lie within 15 %: 1.645 ** 2 * 3/16 / (7/8 - 3/4) ** 2 = 32.5
        ({74: 6}, 9),  # at 0.6 of the time the room is 92 %, in which 15/16 lie: 14.4
        ({39: 6}, 9),  # at 0.3 it is as at a half, 130 %
        ({106: 6}, 27),  # the room is 2.1 %, in which the next bucket lies
        ({107: 6}, None),  # there is no room for another bucket
        ({120: 6}, None),
    ],
)
def test_so_many_more_requests_would_show_that_the_canary_is_good_enough(
    canary: Mapping[int, int], more: int | None
) -> None:
    """With six requests no interval has an upper end."""
    verdict = judged(learned(canary), replace(ENTRY, min_requests=6), elapsed=12.0)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert " to more; 15% more accepted; 6 requests; " in verdict.record.message
    wait = None if more is None else 2.0 * more
    assert verdict.record.expected_seconds == wait
    assert verdict.record.message.endswith(
        "; it passes when more requests show less"
        if wait is None
        else f"; about {more} more requests needed, about {wait:.0f} s"
    )


def test_at_least_one_more_request_is_needed() -> None:
    verdict = judged(learned(ranks(4)))
    assert verdict.record.message.endswith("; about 1 more request needed, about 1 s")
    assert verdict.record.expected_seconds == pytest.approx(0.6)


def test_thousands_of_requests_are_written_with_a_comma() -> None:
    """1.645 ** 2 * 3/16 / (61/80 - 3/4) ** 2 = 3247.2."""
    verdict = judged(learned({100: 6}, stable={100: 61, 150: 19}), replace(ENTRY, min_requests=6), elapsed=6.0)
    assert verdict.record.message.endswith("; about 3,242 more requests needed, about 54 minutes")


def test_without_a_request_that_can_be_compared_only_the_measured_ones_are_counted() -> None:
    verdict = judged(learned({100: 60}, stratum=OTHER))
    assert (verdict.outcome, verdict.record.expected_seconds) == (Outcome.INCONCLUSIVE, None)
    assert verdict.record.message == (
        "ttft p75: no canary request yet that can be compared at equal load (60 measured); it passes when more requests show less"
    )


def test_requests_that_have_waited_beyond_the_threshold_of_the_95_percent_quantile_are_named() -> None:
    """It is in the stable's bucket 150, and 15 % are seven buckets more. All five count as slow in the ratio."""
    sums = learned({100: 50}, waiting={157: 2, 158: 3})
    assert judged(sums).record.message.endswith("; 50 requests; 3 have waited for longer without a first token")
    elsewhere = judged(learned({100: 60}, waiting={158: 1}, stratum=OTHER)).record.message
    assert "(60 measured); 1 has waited for longer without a first token; it passes" in elsewhere


SECONDS = dict.fromkeys(range(201, 301), 1), dict.fromkeys(range(401, 501), 1)


@pytest.mark.parametrize("outcome", [Outcome.REGRESSED, Outcome.PASSED])
def test_the_numbers_of_the_verdict(outcome: Outcome) -> None:
    """Of 100 requests, each in a bucket of its own, the 75 % quantile's interval runs from rank 66 to rank 85."""
    sums = learned(ranks(0), NEEDED + 1 if outcome is Outcome.REGRESSED else -3.0)
    sums.seconds = SECONDS
    verdict = judged(sums)
    record, (shown,) = verdict.record, verdict.signals
    assert (verdict.outcome, record.outcome, shown.outcome) == (outcome, outcome.value, outcome.value)
    assert (record.signal, record.statistic, record.samples) == ("ttft p75", 0.04, 100)
    assert record.limit == pytest.approx(0.05) and record.evidence == pytest.approx(math.exp(sums.evidence.log))
    assert (record.stable_seconds, record.canary_seconds) == (upper(275), upper(475))
    assert record.bound_seconds == pytest.approx(1.15 * upper(275))
    assert (shown.signal, shown.stratum, shown.message) == ("ttft", "", record.message)
    assert (shown.stable_samples, shown.canary_samples, shown.evidence) == (100, 100, record.evidence)
    values = [
        (shown.stable_p50, shown.stable_p95, shown.stable_low, shown.stable_high),
        (shown.canary_p50, shown.canary_p95, shown.canary_low, shown.canary_high),
    ]
    assert values == [tuple(upper(first + rank) for rank in (50, 75, 66, 85)) for first in (200, 400)]


def test_numbers_that_are_not_known_are_left_out() -> None:
    sums = learned(ranks(0))
    sums.hits = [(0.0, 0.0)] * THRESHOLDS
    record, (shown,) = judged(sums).record, judged(sums).signals
    assert (record.statistic, record.bound_seconds, record.stable_seconds, record.canary_seconds) == (
        0.0,
        None,
        None,
        None,
    )
    assert (shown.stable_samples, shown.stable_p50, shown.stable_low, shown.stable_high) == (0, None, None, None)
    assert (shown.canary_samples, shown.canary_p50, shown.canary_low, shown.canary_high) == (0, None, None, None)
