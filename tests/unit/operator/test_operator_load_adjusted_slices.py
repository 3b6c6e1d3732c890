"""Protects the reading of load-adjusted times in /windows: each histogram comes to its place, what is impossible is left out,
and no answer is without a bound. Also that such a slice is no stratum of prompts without requests, that those from before the
canary's traffic change no verdict on it, and that it has a size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pagefleet_operator.domain.analysis.accumulate import Accumulator, Scope, SignalTest
from pagefleet_operator.domain.analysis.guard import Comparison, assess
from pagefleet_operator.domain.spec.rollout import Guard, LatencyGuard
from pagefleet_operator.domain.status.gateway_slices import MAX_LOAD_STRATA, MAX_PODS, MAX_TEXT, bucket_count, slices
from pagefleet_operator.domain.status.observation import LoadCounts, Observation, Slice
from pagefleet_operator.domain.status.status import Status

COUNTS = {"relative": {"460": 3, "500": 1}, "waiting": {"470": 1}, "unmeasured": {"480": 2}, "ttft": {"350": 4}}
PIECE: dict[str, Any] = {
    "start": 100, "revision": "a", "stratum": "", "requests": 0, "errors": 0,
    "load": {"64-180": COUNTS, "512-1447": {"relative": {"462": 1}, "ttft": {"390": 1}}}, "pods": {"a-1": {"460": 2}},
}  # fmt: skip


def read(*pieces: dict[str, Any]) -> list[Slice]:
    return list(slices({"version": 3, "instance": "g", "now": 104.0, "sliceSeconds": 2, "slices": list(pieces)}))


def test_each_histogram_comes_to_its_place() -> None:
    (piece,) = read(PIECE)
    assert piece.load == {
        "64-180": LoadCounts({460: 3, 500: 1}, {470: 1}, {480: 2}, {350: 4}),
        "512-1447": LoadCounts({462: 1}, ttft={390: 1}),
    }
    assert piece.pods == {"a-1": {460: 2}}
    assert piece.adjusted and piece.possible
    assert bucket_count(piece) == 1 + 5 + 2 + 1


def test_the_times_of_whole_answers_are_slices_of_their_own() -> None:
    whole = {name: value for name, value in PIECE.items() if name not in ("load", "pods")}
    whole |= {"wholeLoad": PIECE["load"], "wholePods": PIECE["pods"]}
    streams, answers = read(PIECE, whole)
    assert (streams.whole, answers.whole) == (False, True)
    assert (answers.load, answers.pods, answers.adjusted) == (streams.load, streams.pods, True)
    (mended,) = read(whole | {"wholePods": {"a-1": None, "a-2": {"1": 1}}})
    assert (mended.whole, mended.load, mended.pods) == (True, streams.load, {"a-2": {1: 1}})


@pytest.mark.parametrize("value", [None, 3, "many", [], {"x": 1}, {"5": -1}, {"99999": 1}, {"5": 1.5}, {"5": True}])
def test_impossible_histograms_are_left_out_and_the_others_stay(value: object) -> None:
    (piece,) = read(PIECE | {"load": {"64-180": COUNTS | {"waiting": value}}, "pods": {"a-1": value, "a-2": {"1": 1}}})
    assert piece.load == {"64-180": LoadCounts({460: 3, 500: 1}, {}, {480: 2}, {350: 4})}
    assert piece.pods == {"a-2": {1: 1}}


@pytest.mark.parametrize("value", [None, 3, "many", [1], {"": COUNTS}, {"a" * 254: COUNTS}, {"64-180": 7}, {"x": {}}])
def test_impossible_parts_make_no_load(value: object) -> None:
    (piece,) = read(PIECE | {"load": value, "pods": value})
    assert (piece.load, piece.pods, piece.adjusted) == ({}, {}, False)


def test_an_answer_has_bounds() -> None:
    names = [f"{'n' * (MAX_TEXT - 4)}{number:04}" for number in range(1000)]
    (piece,) = read(PIECE | {"load": dict.fromkeys(names, COUNTS), "pods": {name: {"1": 1} for name in names}})
    assert len(piece.load) == MAX_LOAD_STRATA and len(piece.pods) == MAX_PODS


def test_an_older_gateway_has_no_load() -> None:
    (piece,) = read({name: value for name, value in PIECE.items() if name not in ("load", "pods")})
    assert not piece.adjusted


def test_negative_counts_are_not_possible() -> None:
    (piece,) = read(PIECE)
    for field in ("relative", "waiting", "unmeasured", "ttft"):
        assert not replace(piece, load={"x": LoadCounts(**{field: {1: -1}})}).possible
    assert not replace(piece, pods={"a-1": {1: -1}}).possible


def test_load_adjusted_times_are_no_stratum_of_prompts() -> None:
    """A stratum without requests would be one more that has to be judged."""
    test = SignalTest("ttft", 0.95, 0.15, 1.0)
    sums = Accumulator(Scope("b", "a", 0.0, 0, (test,)))
    for piece in read(PIECE, PIECE | {"stratum": "64-180", "load": {}, "pods": {}, "requests": 4}):
        sums.add(piece)
    assert list(sums.strata_of(test)) == ["64-180"]


def test_the_hour_before_the_canary_changes_no_verdict_on_its_own_slices() -> None:
    test = Guard((LatencyGuard("ttft", 0.95, 0.15, 0.99, 100),), 0.02, 20, False, 600.0)
    own = [
        Slice("g", 2.0 * step, 2.0, name, "64-180", 8, 0, {"ttft": {400 + step % 40: 8}})
        for step in range(100)
        for name in ("a", "b")
    ]
    before = [replace(read(PIECE)[0], start=-3600.0 + 2.0 * step, load={}, pods={}) for step in range(1900)]
    verdicts = []
    for known in (own, [*before, *own]):
        observation = Observation("team", "chat", "u", 1, {}, Status(), slices=tuple(known))
        verdicts.append(assess(observation, test, Comparison("a", "b", since=0.0, now=200.0)))
    assert verdicts[0] is not None and verdicts[0] == verdicts[1]
