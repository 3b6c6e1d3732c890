"""Protects the reading of /windows: requests in flight and those without a measurement belong to the signal that they lack,
a document of an older gateway reads as before, and impossible numbers are no slices. Also what the scaler makes of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from support.virtual.failing import judge

from pagefleet_contract.sketch import bucket_of, upper
from pagefleet_operator.domain.analysis.failures import FailureCounts
from pagefleet_operator.domain.analysis.verdict import Outcome
from pagefleet_operator.domain.analysis.waits import InFlight
from pagefleet_operator.domain.scaling.load_sums import LoadSums
from pagefleet_operator.domain.status.gateway_slices import short_answer, slices
from pagefleet_operator.domain.status.observation import LoadCounts, Slice

PIECE: dict[str, Any] = {
    "start": 100, "revision": "c", "stratum": "64-180", "started": 9, "requests": 4, "errors": 2, "retried": 1,
    "clientErrors": 3, "timeouts": 1, "forced": 5, "ttft": {"500": 2}, "e2e": {"600": 2},
    "waiting": {"520": 1}, "running": {"610": 2}, "leftWaiting": {"530": 1}, "leftRunning": {"640": 1},
    "unmeasuredWaiting": {"530": 2}, "unmeasuredRunning": {"650": 1},
}  # fmt: skip


def read(*pieces: dict[str, Any], **document: Any) -> list[Slice]:
    answer = {"version": 2, "instance": "g", "now": 104.0, "sliceSeconds": 2, "slices": list(pieces), **document}
    return list(slices(answer))


def test_what_lacks_a_measurement_is_read_by_the_signal_that_it_lacks() -> None:
    (piece,) = read(PIECE)
    assert piece.in_flight == {"ttft": {520: 1}, "e2e": {520: 1, 610: 2}}
    assert piece.unmeasured == {"ttft": {530: 3}, "e2e": {530: 3, 640: 1, 650: 1}}
    assert (piece.started, piece.arrived, piece.retried, piece.client_errors, piece.timeouts) == (9, 9, 1, 3, 1)
    assert piece.latency == {"ttft": {500: 2}, "e2e": {600: 2}} and piece.possible


def test_a_slice_that_is_read_is_possible() -> None:
    """It is not looked at again."""
    for piece in read(PIECE, {"start": 100, "requests": 0, "errors": 0}):
        assert vars(piece) == {**vars(replace(piece)), "possible": True}
        assert replace(piece).possible


def test_one_impossible_part_leaves_the_others() -> None:
    whole = {
        **PIECE,
        "load": {"a": {"relative": {"5": 1}, "ttft": {"6": 1}}},
        "pods": {"p": {"7": 1}},
        "slo": {"o": [2, 1]},
    }
    wrong: dict[str, Any] = {
        "stratum": 5, "ttft": {"01": 1}, "tokens": 1.5, "running": [], "leftRunning": {"5": True},
        "load": {"a": {"relative": {"5": 1}, "ttft": {"6": -1}}, "": {"relative": {"5": 1}}},
        "pods": {"p": {"7": 1}, "q": {"x": 1}}, "slo": {"o": [2, 1], "p": [1, 2], "q": [1]},
    }  # fmt: skip
    (piece,) = read({**whole, **wrong})
    (plain,) = read({name: value for name, value in whole.items() if name not in ("ttft", "running", "leftRunning")})
    assert piece == replace(plain, stratum="5", load={"a": LoadCounts({5: 1})})
    assert not read({**whole, "requests": None}) and not read({**whole, "errors": 5})


@pytest.mark.parametrize("wrong", [{}, {"ttft": {"01": 1}}, {"errors": 5}, {"start": None}, {"load": 1}])
def test_the_text_of_an_answer_reads_as_its_document(wrong: dict[str, Any]) -> None:
    document = {
        "instance": "g",
        "now": 9,
        "sliceSeconds": 2,
        "held": 1,
        "slices": [PIECE | wrong, PIECE | {"start": 102}],
    }
    known = short_answer(json.dumps(document))
    assert {name: known[name] for name in ("instance", "now", "sliceSeconds", "held")} | {"slices": 0} == {
        **document, "slices": 0,
    }  # fmt: skip
    for after, adjusted_after in ((-math.inf, math.inf), (100, math.inf), (102, 0)):
        assert list(slices(known, after, adjusted_after)) == list(slices(document, after, adjusted_after))


def test_an_answer_that_is_no_object_is_refused_and_one_without_slices_has_none() -> None:
    for text in ("[1]", "{", "1"):
        with pytest.raises(ValueError):
            short_answer(text)
    assert list(slices(short_answer('{"instance": "g", "sliceSeconds": 2, "slices": {}}'))) == []
    assert list(slices(short_answer('{"instance": "g", "sliceSeconds": 2, "slices": [1, null], "now": NaN}'))) == []


def test_an_older_gateway_s_document_reads_as_before() -> None:
    old = {"start": 100, "revision": "c", "stratum": "s", "requests": 4, "errors": 2, "ttft": {"500": 2}, "e2e": {}}
    (piece,) = read(old, version=1)
    assert (piece.in_flight, piece.unmeasured, piece.started, piece.arrived) == ({}, {}, None, 4)
    assert (piece.retried, piece.client_errors, piece.timeouts) == (0, 0, 0)


@pytest.mark.parametrize("name", ["waiting", "leftWaiting", "retried", "clientErrors", "timeouts", "started"])
@pytest.mark.parametrize("value", [-1, {"5": -1}, {"x": 1}, "many", None, {"99999": 1}])
def test_numbers_that_cannot_be_count_as_none(name: str, value: object) -> None:
    (piece,) = read(PIECE | {name: value})
    assert piece.possible
    if name == "waiting":
        assert "ttft" not in piece.in_flight


def test_a_slice_cannot_have_more_retried_attempts_than_errors() -> None:
    (piece,) = read(PIECE | {"retried": 100})
    assert piece.retried == piece.errors == 2
    assert not replace(piece, retried=3).possible
    assert not replace(piece, client_errors=-1).possible
    assert not replace(piece, timeouts=-1).possible
    assert not replace(piece, in_flight={"ttft": {5: -1}}).possible


def of_seconds(start: float, ttft: list[float], waiting: list[float] | None = None) -> Slice:
    latency, ages = dict[int, int](), dict[int, int]()
    for values, histogram in ((ttft, latency), (waiting or [], ages)):
        for value in values:
            histogram[bucket_of(value)] = histogram.get(bucket_of(value), 0) + 1
    return Slice(
        "g", start, 2.0, "a", "0-63", len(ttft), 0, {"ttft": latency}, in_flight={"ttft": ages} if ages else {}
    )


def ttft_of(pieces: list[Slice], now: float) -> float | None:
    sums = LoadSums()
    sums.add(pieces, now)
    return sums.load(0, now, True).ttft


def test_the_scaler_s_time_to_first_token_includes_requests_that_still_wait() -> None:
    answered = [of_seconds(2.0 * index, [0.2] * 10) for index in range(20)]
    assert ttft_of(answered, 44.0) == pytest.approx(upper(bucket_of(0.2)))
    stuck = [of_seconds(40.0, [0.2] * 10, [0.1] * 5 + [20.0] * 30)]
    assert ttft_of([*answered, *stuck], 46.0) == pytest.approx(upper(bucket_of(20.0))), (
        "30 of 240 requests have waited for 20 s"
    )
    no_longer = of_seconds(42.0, [0.2] * 10)
    assert ttft_of([*answered, *stuck, no_longer], 48.0) == pytest.approx(upper(bucket_of(0.2)))


def test_a_service_that_answers_nobody_has_a_time_to_first_token() -> None:
    silent = [of_seconds(2.0 * index, [], [2.0 * index] * 25) for index in range(10)]
    assert ttft_of(silent, 24.0) == pytest.approx(upper(bucket_of(18.0)))
    assert ttft_of([of_seconds(2.0 * index, [], [2.0 * index] * 5) for index in range(10)], 24.0) is None


def test_requests_in_flight_are_those_of_the_gateways_that_still_report() -> None:
    in_flight = InFlight()
    assert in_flight.total() == {}
    in_flight.update(replace(of_seconds(0.0, [], [1.0]), instance="gone"), "ttft")
    in_flight.update(replace(of_seconds(2.0, [], [3.0]), instance="here"), "ttft")
    assert in_flight.total() == {bucket_of(1.0): 1, bucket_of(3.0): 1}
    in_flight.update(replace(of_seconds(30.0, [], [3.0, 5.0]), instance="here"), "ttft")
    assert in_flight.total() == {bucket_of(1.0): 1, bucket_of(3.0): 1, bucket_of(5.0): 1}
    later = in_flight.copied()
    later.update(replace(of_seconds(32.0, [], [7.0]), instance="here"), "ttft")
    assert later.total() == {bucket_of(7.0): 1}
    later.update(replace(of_seconds(34.0, [7.0]), instance="here"), "ttft")
    assert later.total() == {}
    assert len(in_flight.total()) == 3, "a copy is a copy"


def periods(stable: tuple[int, int], canary: tuple[int, int], count: int = 30) -> list[FailureCounts]:
    """Periods with (requests, 4xx) of both revisions."""
    one = FailureCounts(stable[0], 0, canary[0], 0, (), 0, stable[1], canary[1])
    return [replace(one, starts=()) for _ in range(count)]


@pytest.mark.parametrize(
    ("stable", "canary", "count", "convicted"),
    [
        ((90, 0), (0, 10), 30, True),  # it refuses every request
        ((90, 1), (7, 3), 30, True),
        ((50, 0), (25, 25), 30, True),
        ((90, 0), (0, 10), 5, False),  # for less than a minute
        ((45, 45), (5, 5), 100, False),  # bad clients of both
        ((90, 2), (9, 1), 100, False),  # several times as often, and still few
        ((98, 2), (94, 6), 100, False),
        ((0, 0), (5, 5), 100, False),  # nothing to compare with
    ],
)
def test_an_excess_of_4xx_convicts_only_when_it_is_unmistakable(
    stable: tuple[int, int], canary: tuple[int, int], count: int, convicted: bool
) -> None:
    verdict = judge(periods(stable, canary, count))
    assert (verdict.outcome is Outcome.REGRESSED) is convicted, verdict.record.message
    shown = [signal for signal in verdict.signals if signal.signal == "clientErrors"]
    assert [signal.outcome for signal in shown] == ["Regressed" if convicted else "Passed"]
    assert verdict.reason == ("ClientErrors" if convicted else "")


def test_no_4xx_is_no_signal_and_one_bad_minute_no_conviction() -> None:
    assert [one.signal for one in judge(periods((90, 0), (10, 0))).signals] == ["errors"]
    burst = [*periods((90, 0), (10, 0)), *periods((90, 0), (0, 5000), 3)]
    assert judge(burst).outcome is Outcome.PASSED


def test_4xx_that_begin_after_an_hour_convict_too() -> None:
    late = [*periods((90, 0), (10, 0), 360), *periods((90, 0), (0, 10), 30)]
    assert judge(late).reason == "ClientErrors"


@pytest.mark.parametrize(
    ("stable", "canary", "count", "convicted"),
    [
        (0, 3, 30, True),  # it hangs, and half of its requests fail in the limit of the errors
        (1, 3, 30, True),
        (0, 3, 3, False),  # a burst
        (27, 3, 60, False),  # both
        (3, 1, 60, False),  # three times as often
    ],
)
def test_an_excess_of_timeouts_convicts_where_the_errors_do_not(
    stable: int, canary: int, count: int, convicted: bool
) -> None:
    one = FailureCounts(90, stable, 10, canary, (0.0, 2.0), stable_timeouts=stable, canary_timeouts=canary)
    verdict = judge([replace(one) for _ in range(count)], max_rate=0.5)
    assert verdict.reason == ("Timeouts" if convicted else ""), verdict.record.message
    shown = [signal for signal in verdict.signals if signal.signal == "timeouts"]
    assert [signal.outcome for signal in shown] == ["Regressed" if convicted else "Passed"]
    assert "canary requests were ended by a time limit (" in shown[0].message


def test_without_a_stable_to_compare_with_neither_4xx_nor_timeouts_convict() -> None:
    one = FailureCounts(0, 0, 10, 5, (0.0,), canary_client_errors=9, canary_timeouts=5)
    verdict = judge([replace(one) for _ in range(100)], max_rate=0.9)
    assert verdict.reason == ""
    assert [record.signal for record in verdict.failures] == ["errors", "clientErrors", "timeouts"]


def test_failed_attempts_that_were_retried_are_errors_and_named() -> None:
    counts = [FailureCounts(90, 0, 20, 4, (10.0 * number,), 3) for number in range(20)]
    verdict = judge(counts)
    assert verdict.reason == "ErrorRate"
    assert "80 of 400 canary requests failed" in verdict.record.message
    assert "60 of them attempts that were retried on another pod" in verdict.record.message
