"""Protects how the guard shares its error level among its signals and the hours of a rollout, which slices of a source it judges, and
when it judges the time to first token at equal load."""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis import guard, limits
from pagefleet_operator.domain.analysis.failures import Bound, SlowCounts, Subject, gather
from pagefleet_operator.domain.analysis.guard import Comparison, _SourceSlices
from pagefleet_operator.domain.analysis.throughput import Prices
from pagefleet_operator.domain.analysis.verdict import Verdict
from pagefleet_operator.domain.spec.rollout import FreePages, Guard, LatencyGuard
from pagefleet_operator.domain.spec.schema.guard_signals import Source
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.observation import LoadCounts, Observation, PodReading, RevisionReading, Slice
from pagefleet_operator.domain.status.status import SignalRecord, Status

SLICE = 2.0
TTFT = LatencyGuard("ttft", 0.95, 0.15, 0.99, 20)
BOUND = LatencyGuard("e2e", 0.95, 1000.0, 0.99, 20, max_seconds=2.0)
NOTHING = Guard((), None, 0, "hold", 600.0)
WHOLE = Guard(
    (TTFT, BOUND), 0.01, 0, "hold", 600.0,
    max_fallback_rate=0.02, max_throughput_decrease=0.1, max_cost_increase=0.1,
)  # fmt: skip
SIGNALS = 7  # of WHOLE: two latencies, one of them with a bound, and four shares and rates
LEARNED = 100  # slices of the stable alone


def slices(count: int, adjusted: bool = False, start: float = 0.0) -> list[Slice]:
    """Eight requests a slice on the stable and two on the canary, which is worse by every signal."""
    source, pieces = random.Random(3), []
    for index in range(-LEARNED if adjusted else 0, count):
        for revision, requests in (("s", 8), ("c", 2)) if index >= 0 else (("s", 8),):
            worse, at = revision == "c", start + index * SLICE
            failed = sum(source.random() < 0.3 for _ in range(requests)) if worse else 0
            fell_back = sum(source.random() < 0.3 for _ in range(requests)) if worse else 0
            latency = {
                signal: times(source, requests, usual * (factor if worse else 1.0))
                for signal, usual, factor in (("ttft", 0.5, 1.4), ("tpot", 0.02, 1.5), ("e2e", 1.0, 1.5))
            }
            own = Slice("g", at, SLICE, revision, "s", requests, failed, latency, started=requests)
            pieces.append(replace(own, fell_back=fell_back, tokens=50 * requests))
            if adjusted:
                relative = times(source, requests, 1.6 if worse else 1.0)
                load = {"512-1447": LoadCounts(relative, ttft=relative)}
                pieces.append(Slice("g", at, SLICE, revision, "", 0, 0, load=load))
    return pieces


def times(source: random.Random, count: int, usual: float) -> dict[int, int]:
    histogram: dict[int, int] = {}
    for _ in range(count):
        bucket = sketch.bucket_of(usual * source.lognormvariate(0, 0.3))
        histogram[bucket] = histogram.get(bucket, 0) + 1
    return histogram


def judged(pieces: Sequence[Slice], own: Guard, since: float = 0.0, **more: Any) -> Verdict | None:
    observation = Observation("ns", "chat", "uid", 1, {}, Status(), slices=tuple(pieces))
    now = pieces[-1].start + 2 * SLICE
    return guard.assess(observation, own, Comparison("s", "c", since, now, prices=Prices(1.0, 1.0, 4), **more))


def at_conviction(own: Guard, title: str, adjusted: bool) -> tuple[float, float]:
    """The evidence against the canary by one signal a slice before its conviction, and at it."""
    pieces = slices(200, adjusted)

    def shown(count: int) -> SignalRecord:
        verdict = judged([piece for piece in pieces if piece.start < count * SLICE], own)
        assert verdict is not None
        return next(one for one in verdict.signals if one.signal == title)

    first = bisect(range(200), False, lo=2, key=lambda count: shown(count).outcome == "Regressed")
    return shown(first - 1).evidence, shown(first).evidence


@pytest.mark.parametrize("among_others", [False, True])
@pytest.mark.parametrize(
    ("title", "alone", "signals", "needed", "adjusted"),
    [
        ("errors", {"max_error_rate": 0.01}, 1, 125, False),  # a fifth is for 4xx and timeouts
        ("fallbacks", {"max_fallback_rate": 0.02}, 1, 100, False),
        ("throughput", {"max_throughput_decrease": 0.1}, 1, 200, False),  # a half is for later hours
        ("cost", {"max_cost_increase": 0.1}, 1, 200, False),
        ("ttft", {"latency": (TTFT,)}, 1, 200, False),
        ("ttft", {"latency": (TTFT,)}, 1, 100, True),
        ("e2e p95 bound", {"latency": (BOUND,)}, 2, 100, False),  # the comparison with the stable is the other
    ],
)
def test_each_signal_convicts_at_its_part_of_the_error_level(
    title: str, alone: dict[str, Any], signals: int, needed: int, adjusted: bool, among_others: bool
) -> None:
    own = WHOLE if among_others else replace(NOTHING, **alone)
    before, found = at_conviction(own, title, adjusted)
    assert before < needed * (SIGNALS if among_others else signals) <= found


@pytest.mark.parametrize(
    ("entry", "more", "at_equal_load"),
    [
        (TTFT, {}, True),
        (replace(TTFT, signal="e2e"), {}, False),
        (TTFT, {"mirrored": True}, False),
        (TTFT, {"after_promotion": True}, False),
    ],
)
def test_only_the_time_to_first_token_of_concurrent_requests_is_judged_at_equal_load(
    entry: LatencyGuard, more: dict[str, Any], at_equal_load: bool
) -> None:
    """Only the judgement at equal load stores evidence about latency."""
    verdict = judged(slices(60, adjusted=True), replace(NOTHING, latency=(entry,)), **more)
    assert verdict is not None and bool(verdict.evidence) is at_equal_load


def test_a_signal_that_nobody_measures_of_copies_is_left_out() -> None:
    assert judged(slices(60), replace(NOTHING, latency=(replace(TTFT, signal="tpot"),)), mirrored=True) is None


def test_copies_have_no_throughput_no_cost_and_no_fallbacks() -> None:
    others = {"max_throughput_decrease": 0.1, "max_cost_increase": 0.1, "max_fallback_rate": 0.02}
    assert judged(slices(60), replace(NOTHING, **others), mirrored=True) is None
    after = judged(slices(60), replace(NOTHING, **others), after_promotion=True)
    assert after is not None and {one.signal for one in after.signals} == {"fallbacks"}


@pytest.mark.parametrize(("after_promotion", "stable"), [(False, "s"), (True, "")])
def test_the_evidence_of_a_promoted_revision_s_failures_is_stored_apart_from_that_of_the_canary(
    after_promotion: bool, stable: str
) -> None:
    """A promotion ends the comparison that the canary's evidence comes from."""
    verdict = judged(slices(60), replace(WHOLE, latency=(BOUND,)), after_promotion=after_promotion)
    assert verdict is not None
    assert {one.against for one in verdict.failures} == {stable}
    assert len(verdict.failures) == 5, "of errors, client errors, timeouts, fallbacks and the bound"


@pytest.mark.parametrize("adjusted", [False, True])
def test_a_wait_is_told_by_the_traffic_since_the_canary_got_its_weight(adjusted: bool) -> None:
    own, waits = replace(NOTHING, latency=(replace(TTFT, min_requests=500),)), []
    for start in (0.0, 3000.0):
        verdict = judged(slices(30, adjusted, start), own, since=start)
        assert verdict is not None
        waits.append(verdict.record.expected_seconds)
    assert waits[0] == waits[1] == pytest.approx(440 * 62 / 60)  # 60 of 500 requests came in 62 s


def judging(starts: Sequence[float], since: float, now: float) -> tuple[float, float]:
    """Since when slices count, and the inverse of the part of the error level."""
    own = _SourceSlices([Slice("g", start, SLICE, "s", "s", 1, 0) for start in starts], since, now)
    return own.begin, 1 / own.part


@pytest.mark.parametrize(
    ("oldest", "now", "begin", "parts"),
    [
        (0.0, 50.0, 0.0, 2),
        (60.0, 4000.0, 0.0, 2),  # a minute may lack
        (61.0, 4000.0, 3600.0, 6),
        (3600.0, 8000.0, 3600.0, 6),
        (3601.0, 8000.0, 7200.0, 12),
        (3601.0, 7200.0, 7200.0, 12),
        (3601.0, 7199.0, 3600.0, 6),  # less than an hour is there: a part of it is judged
        (9e9, 50.0, 0.0, 2),  # a slice of a clock that is wrong
        (0.0, -50.0, 0.0, 2),  # the operator's own clock is wrong
    ],
)
def test_slices_count_from_the_first_whole_hour_that_is_complete(
    oldest: float, now: float, begin: float, parts: int
) -> None:
    """The parts of all hours, 1/2, 1/6, 1/12 and so on, add up to 1."""
    found = judging([oldest, oldest + 10.0], 0.0, now)
    assert found == (begin, pytest.approx(parts))
    assert judging([oldest + 100.0, oldest + 110.0], 100.0, now + 100.0) == (begin + 100.0, pytest.approx(parts))


def test_a_slice_that_cannot_be_true_says_nothing_of_how_long_slices_are_kept() -> None:
    impossible = Slice("g", 0.0, SLICE, "s", "s", 1, 9)
    own = _SourceSlices([impossible, Slice("g", 3601.0, SLICE, "s", "s", 1, 0)], 0.0, 8000.0)
    assert own.begin == 7200.0


def test_a_source_without_slices_is_judged_from_the_beginning() -> None:
    assert judging([], 100.0, 5000.0) == (100.0, pytest.approx(2))


def test_a_revision_s_slices_count_after_its_warm_up() -> None:
    def piece(start: float, revision: str = "c", requests: int = 2, **more: Any) -> Slice:
        return Slice("g", start, SLICE, revision, "s", requests, 0, **more)

    adjusted = {"load": {"512-1447": LoadCounts({5: 1}, ttft={5: 1})}}
    pieces = [
        piece(98.0), piece(100.0), piece(101.0, requests=9, retried=1), piece(102.0, "s", 9), piece(104.0, requests=9, **adjusted), piece(106.0), piece(108.0),
        piece(110.0),
    ]  # fmt: skip
    own = _SourceSlices(pieces, 100.0, 120.0)
    assert [one.start for one in own.own("c", 4)] == [108.0, 110.0]
    assert [one.start for one in own.own("c", 3)] == [108.0, 110.0]
    assert [one.start for one in own.own("c", 0)] == [100.0, 106.0, 108.0, 110.0]
    assert [one.start for one in own.own("s", 0)] == [102.0]


@pytest.mark.parametrize(
    ("own", "signals"),
    [
        (replace(NOTHING, max_error_rate=0.01, error_source=Source.PROMETHEUS), ["errors"]),
        (replace(NOTHING, latency=(replace(BOUND, given="Prometheus", histogram="h"),)), ["e2e"]),
    ],
)
def test_a_source_without_an_answer_is_named_with_its_reason(own: Guard, signals: list[str]) -> None:
    silence = {"prometheus": "Prometheus is away", "prometheus h": "Prometheus is away"}
    observation = Observation("ns", "chat", "uid", 1, {}, Status(), slices=tuple(slices(3)), silence=silence)
    verdict = guard.assess(observation, own, Comparison("s", "c", 0.0, 10.0))
    assert verdict is not None and verdict.outcome.value == "Inconclusive"
    assert [one.signal for one in verdict.signals] == signals
    assert "no measurement to judge by: Prometheus is away; source Prometheus" in verdict.record.message


def test_the_first_slice_of_the_stable_counts_in_a_throughput() -> None:
    """A warm-up is the canary's. With one slice less there would be five blocks, and six are needed."""
    pieces = [
        Slice("g", 30.0 * index, SLICE, name, "s", 10, 0, {"tpot": {sketch.bucket_of(0.02): 10}}, tokens=500)
        for index in range(6)
        for name in "sc"
    ]
    verdict = judged(pieces, replace(NOTHING, max_throughput_decrease=0.1))
    assert verdict is not None and verdict.outcome.value == "Passed", verdict.record.message


def test_the_evidence_of_a_bound_has_the_alternatives_of_a_bound() -> None:
    verdict = judged(slices(30), replace(NOTHING, latency=(BOUND,)))
    assert verdict is not None
    (stored,) = verdict.failures
    assert len(stored.absolute) == len(limits.BOUND_ODDS)
    subject = Subject("e2e 2", "gateway", "s", 0.0, 1 - 0.95, odds=limits.BOUND_ODDS)
    slow = SlowCounts(Bound("e2e", 2.0))
    for piece in slices(30):
        slow.add(piece, piece.revision == "c")
    assert gather((), subject, slow.periods).settled.absolute == stored.absolute


@pytest.mark.parametrize(
    ("signal", "requests", "streams", "named"),
    [
        ("ttft", 50, False, True),
        ("tpot", 50, False, True),
        ("ttft", 49, False, False),  # so few that it may still come
        ("ttft", 50, True, False),
        ("e2e", 50, False, False),
    ],
)
def test_a_service_without_streams_learns_why_it_gets_no_verdict(
    signal: str, requests: int, streams: bool, named: bool
) -> None:
    times = {"ttft": {sketch.bucket_of(0.02): 1}} if streams else {}
    pieces = [Slice("g", 0.0, SLICE, name, "s", requests, 0, times, started=requests) for name in "sc"]
    own = replace(NOTHING, latency=(LatencyGuard(signal, 0.95, 0.15, 0.99, 50),))
    verdict = judged(pieces, own)
    assert verdict is not None and verdict.outcome.value == "Inconclusive"
    words = (
        f"{signal} p95: 0 of the 50 requests needed: none of the 50 requests that the canary has answered was a stream with a "
        f"known {signal}; where clients do not stream, leave spec.rollout.guard.latency out or judge e2e; source Gateway"
    )
    assert (verdict.record.message == words) is named
    assert "stream" not in verdict.record.message or named


def test_nothing_is_judged_without_signals_or_before_the_canary_has_traffic() -> None:
    assert judged(slices(3), NOTHING) is None
    observation = Observation("ns", "chat", "uid", 1, {}, Status(), slices=tuple(slices(3)))
    assert guard.assess(observation, WHOLE, Comparison("s", "c", None, 10.0)) is None


@pytest.mark.parametrize(("since", "outcome"), [(None, "Inconclusive"), (971.0, "Inconclusive"), (970.0, "Regressed")])
def test_a_shortage_of_free_pages_is_as_long_as_it_has_lasted(since: float | None, outcome: str) -> None:
    pod = PodReading("c-0", True, False, 0.0, 0.0, load_age=1.0, load=EngineLoad(kv_pages_total=100, kv_pages_free=9))
    observation = Observation("ns", "chat", "uid", 1, {}, Status(), revisions={"c": RevisionReading("c", 1, (pod,))})
    own = replace(NOTHING, free_pages=FreePages(0.1, 30.0))
    verdict = guard.assess(observation, own, Comparison("s", "c", None, 1000.0, low_since=since))
    assert verdict is not None and verdict.outcome.value == outcome
