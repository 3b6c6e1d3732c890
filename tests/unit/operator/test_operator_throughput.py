"""Protects the throughput signal of the guard: a canary whose requests get clearly fewer output tokens per second is rolled back,
with both numbers; one that is as fast, or has fewer requests or shorter answers, is not."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.virtual.traffic import SLICE

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis import guard
from pagefleet_operator.domain.analysis.guard import Comparison
from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.spec.rollout import Guard
from pagefleet_operator.domain.status.observation import Observation, Slice
from pagefleet_operator.domain.status.status import Status

GUARD = Guard((), None, 5, "hold", 600.0, max_throughput_decrease=0.15)


def traffic(seed: int, slower: float, share: float = 0.3, slices: int = 200, onset: int = 0) -> list[Slice]:
    """Ten requests a slice; a token takes 20 ms on the stable, with waves of load that both revisions feel."""
    source, pieces = random.Random(seed), []
    for index in range(slices):
        wave = 1.5 if index % 50 < 15 else 1.0
        late = slower if index >= onset else 1.0
        for revision, weight, factor in (("s", 1 - share, 1.0), ("c", share, late)):
            histogram: dict[int, int] = {}
            requests = max(0, round(source.gauss(10 * weight, 1)))
            for _ in range(requests):
                bucket = sketch.bucket_of(0.02 * wave * factor * source.lognormvariate(0, 0.2))
                histogram[bucket] = histogram.get(bucket, 0) + 1
            pieces.append(Slice("g", index * SLICE, SLICE, revision, "s", requests, 0, {"tpot": histogram}))
    return pieces


def judge(pieces: list[Slice] | None, **more: object) -> Verdict | None:
    slices = None if pieces is None else tuple(pieces)
    observation = Observation("ns", "chat", "uid", 1, {}, Status(), slices=slices)
    return guard.assess(observation, GUARD, Comparison("s", "c", 0.0, 1000.0, **more))


def test_a_canary_with_fewer_tokens_per_second_is_rolled_back_with_both_numbers() -> None:
    verdict = judge(traffic(1, 1.5))
    assert verdict is not None
    assert (verdict.outcome, verdict.reason) == (Outcome.REGRESSED, "Throughput")
    record = verdict.record
    assert (record.signal, record.stable_seconds, record.canary_seconds) == ("throughput", None, None)
    assert record.message.startswith("throughput: a canary request gets 2")
    assert "output tokens/s, one of the stable 4" in record.message
    assert "for like prompts -3" in record.message
    assert "%, limit -15%; worse than that in 1" in record.message
    assert [signal.signal for signal in verdict.signals] == ["throughput"]
    assert "output tokens/s" in verdict.signals[0].message


def test_a_decrease_that_begins_late_is_found_and_a_slow_minute_is_not_one() -> None:
    late = judge(traffic(2, 1.5, slices=900, onset=600))
    assert late is not None and late.reason == "Throughput"
    minute = [*traffic(3, 1.0, slices=300), *(piece for piece in traffic(4, 3.0, slices=350) if piece.start >= 600)]
    verdict = judge(minute)
    assert verdict is not None and verdict.reason == "", verdict.record.message


def test_prompts_of_another_length_are_not_compared() -> None:
    """The canary gets mostly long prompts, whose tokens come more slowly on both."""
    pieces = []
    for piece in traffic(5, 1.0):
        long, slow = piece.revision == "c", {bucket + 60: count for bucket, count in piece.latency["tpot"].items()}
        few = {min(piece.latency["tpot"], default=0): 1}
        pieces.append(replace(piece, stratum="s", latency={"tpot": few if long else piece.latency["tpot"]}))
        pieces.append(
            replace(piece, stratum="l", latency={"tpot": slow if long else {bucket + 60: 1 for bucket in few}})
        )
    verdict = judge(pieces)
    assert verdict is not None and verdict.reason == "", verdict.record.message


@pytest.mark.parametrize(("slower", "share"), [(1.0, 0.3), (1.0, 0.1), (1.1, 0.3), (0.5, 0.3)])
def test_a_canary_that_is_about_as_fast_is_not(slower: float, share: float) -> None:
    for seed in range(15):
        verdict = judge(traffic(seed, slower, share))
        assert verdict is not None
        assert verdict.reason == "", verdict.record.message


def test_without_measurements_it_is_inconclusive_and_names_the_signal() -> None:
    for pieces in (None, [], traffic(1, 1.0, slices=30)):
        verdict = judge(pieces)
        assert verdict is not None
        assert verdict.outcome is Outcome.INCONCLUSIVE
        assert verdict.record.message.startswith("throughput: "), verdict.record.message


def test_it_is_not_judged_without_a_concurrent_stable_or_a_measurement_of_the_gateways() -> None:
    pieces = traffic(1, 3.0)
    assert judge(pieces, after_promotion=True) is None
    assert judge(pieces, mirrored=True) is None


@pytest.mark.parametrize(
    ("given", "decrease"),
    [
        ({"maxDecrease": "15%"}, 0.15),
        ({"maxDecrease": "30%"}, 0.3),
        ({"maxDecrease": "100%"}, None),
        ({"maxDecrease": "-1%"}, None),
        ({}, None),
    ],
)
def test_the_accepted_decrease_is_less_than_all(given: dict[str, str], decrease: float | None) -> None:
    parsed = parse({"model": {"source": "file:///m"}, "rollout": {"guard": {"throughput": given}}})
    assert isinstance(parsed, Spec) is (decrease is not None)
    if isinstance(parsed, Spec):
        assert parsed.rollout.guard.max_throughput_decrease == pytest.approx(decrease)
    else:
        assert "spec.rollout.guard.throughput.maxDecrease" in str(parsed)
