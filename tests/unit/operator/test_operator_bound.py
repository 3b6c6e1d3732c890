"""Protects the absolute bound of a latency signal: a canary whose quantile is proven to lie above maxSeconds is rolled back, also
one that hangs and is never measured; one within it, or beside a stable that breaks it as badly, is not."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.virtual.traffic import SLICE

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis import guard
from pagefleet_operator.domain.analysis.guard import Comparison
from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict
from pagefleet_operator.domain.base.edged import Edged
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.spec.rollout import Guard, LatencyGuard
from pagefleet_operator.domain.status.observation import LoadCounts, Observation, Slice
from pagefleet_operator.domain.status.status import Status

# So large an accepted increase that the relative test convicts nobody.
BOUNDED = LatencyGuard("ttft", 0.95, 1000.0, 0.99, 100, max_seconds=2.0)
GUARD = Guard((BOUNDED,), None, 5, "hold", 600.0)


def traffic(seed: int, slow: tuple[float, float], slices: int = 150, waiting: int = 0) -> list[Slice]:
    """Nine requests a slice on the stable and three on the canary, of which these shares take 3 s, the others 0.5 s."""
    source, pieces = random.Random(seed), []
    for index in range(slices):
        for revision, requests, share in (("s", 9, slow[0]), ("c", 3, slow[1])):
            histogram: dict[int, int] = {}
            for _ in range(requests):
                bucket = sketch.bucket_of(3.0 if source.random() < share else 0.5)
                histogram[bucket] = histogram.get(bucket, 0) + 1
            piece = Slice("g", index * SLICE, SLICE, revision, "s", requests, 0, {"ttft": histogram})
            if waiting and revision == "c":
                ages = [SLICE * (index - begun) + 1.0 for begun in range(index + 1) for _ in range(waiting)]
                counts = {sketch.bucket_of(age): 0 for age in ages}
                for age in ages:
                    counts[sketch.bucket_of(age)] += 1
                piece = replace(piece, requests=0, latency={}, started=waiting, in_flight={"ttft": counts})
            pieces.append(piece)
    return pieces


def judge(pieces: list[Slice], chosen: Guard = GUARD, **more: object) -> Verdict:
    observation = Observation("ns", "chat", "uid", 1, {}, Status(), slices=tuple(pieces))
    verdict = guard.assess(observation, chosen, Comparison("s", "c", 0.0, 1000.0, **more))
    assert verdict is not None
    return verdict


def test_a_canary_above_the_bound_is_rolled_back_with_its_numbers() -> None:
    verdict = judge(traffic(1, (0.01, 0.3)))
    assert (verdict.outcome, verdict.reason) == (Outcome.REGRESSED, "LatencyBound")
    assert (verdict.record.signal, verdict.record.bound_seconds) == ("ttft p95 bound", 2.0)
    assert "canary requests took longer than 2 s (" in verdict.record.message
    assert "allowed 5.0%); " in verdict.record.message
    assert [record.signal for record in verdict.failures] == ["ttft 2"]


def test_requests_that_hang_break_the_bound_before_they_are_measured() -> None:
    assert judge(traffic(1, (0.0, 0.0), slices=30, waiting=1)).reason == "LatencyBound"


def test_a_canary_within_the_bound_is_not_rolled_back() -> None:
    for seed in range(30):
        verdict = judge(traffic(seed, (0.0, 0.03)))
        assert verdict.reason == "", verdict.record.message
    assert "LatencyBound" not in {judge(traffic(seed, (0.05, 0.05))).reason for seed in range(30)}


def test_a_stable_that_breaks_it_as_badly_rolls_nobody_back_and_the_verdict_says_so() -> None:
    for seed in range(30):
        verdict = judge(traffic(seed, (0.4, 0.4)))
        assert verdict.reason == "", verdict.record.message
    (_, shown) = judge(traffic(3, (0.5, 0.3))).signals
    assert shown.message.endswith(" of the stable, which breaks the bound just as badly: no reason to roll back")


def test_the_bound_is_judged_beside_times_that_are_adjusted_by_load() -> None:
    pieces = traffic(1, (0.0, 0.3))
    load = {"64-180": LoadCounts(relative={sketch.bucket_of(1.0): 9}, ttft={sketch.bucket_of(0.5): 9})}
    pieces += [Slice("g", index * SLICE, SLICE, "s", "", 0, 0, load=load) for index in range(150)]
    assert judge(sorted(pieces, key=lambda piece: piece.start)).reason == "LatencyBound"


def test_after_a_promotion_the_bound_alone_counts() -> None:
    pieces = traffic(1, (0.0, 0.3))
    verdict = judge([piece for piece in pieces if piece.revision == "c"], after_promotion=True)
    assert verdict.reason == "LatencyBound"


def test_a_bound_above_the_last_edge_of_a_histogram_is_no_pass() -> None:
    edges = (0.5, 1.0, float("inf"))
    pieces = [
        replace(
            piece,
            latency={"ttft": {sketch.bucket_of(1.0): piece.requests}},
            edged={"ttft": Edged(edges, {1: piece.requests})},
        )
        for piece in traffic(1, (0.0, 0.0))
    ]
    bound = judge(pieces).signals[-1]
    assert (bound.signal, bound.outcome) == ("ttft p95 bound", "Inconclusive")
    within = replace(GUARD, latency=(replace(BOUNDED, max_seconds=1.0),))
    assert judge(pieces, within).signals[-1].outcome == "Passed"


@pytest.mark.parametrize(
    ("value", "accepted"),
    [(0.001, True), (30, True), (86400, True), (0, False), (-1, False), (90000, False), ("2s", False)],
)
def test_the_bound_is_a_number_of_seconds(value: object, accepted: bool) -> None:
    rollout = {"guard": {"latency": [{"signal": "e2e", "maxSeconds": value}]}}
    parsed = parse({"model": {"source": "file:///m"}, "rollout": rollout})
    assert isinstance(parsed, Spec) is accepted
    if isinstance(parsed, Spec):
        assert parsed.rollout.guard.latency[0].max_seconds == value
    else:
        assert "maxSeconds" in str(parsed)
