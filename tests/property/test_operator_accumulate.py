"""Protects the memo of the guard: a decision adds up the new slices and not the hour again. However slices come (late,
twice, impossible, from several gateways, cut off at the old end), the verdict is the one without a memo."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis import guard, sources
from pagefleet_operator.domain.analysis.accumulate import StoredSums
from pagefleet_operator.domain.analysis.guard import Comparison
from pagefleet_operator.domain.analysis.paired import common_odds, dispersion
from pagefleet_operator.domain.analysis.verdict import Verdict
from pagefleet_operator.domain.spec.rollout import Guard, LatencyGuard
from pagefleet_operator.domain.status.observation import Observation, Slice
from pagefleet_operator.domain.status.status import BaselineRecord, Status

GUARD = Guard(
    (LatencyGuard("ttft", 0.95, 0.15, 0.99, 100), LatencyGuard("e2e", 0.9, 0.1, 0.95, 50)), 0.02, 20, "hold", 600.0
)
SECONDS, REVISIONS, STRATA = 2.0, ("s", "c"), ("s", "l")


def moment(source: random.Random, index: int, worse: float, most: int = 8) -> list[Slice]:
    """What one gateway measured in two seconds."""
    slices = []
    for revision in REVISIONS:
        for stratum in STRATA:
            histogram: dict[int, int] = {}
            requests = source.randint(0, most)
            for _ in range(requests):
                seconds = 0.1 * source.lognormvariate(0, 0.5) * (worse if revision == "c" else 1.0)
                histogram[sketch.bucket_of(seconds)] = histogram.get(sketch.bucket_of(seconds), 0) + 1
            errors = source.choice([0, 0, 0, 0, 0, 1, requests + 1])  # more errors than requests cannot be
            latency = {"ttft": histogram, "e2e": histogram}
            slices.append(Slice("g", index * SECONDS, SECONDS, revision, stratum, requests, errors, latency))
    return slices


def judge(slices: list[Slice], question: Comparison, memo: dict[str, object]) -> Verdict | None:
    observation = Observation("ns", "chat", "uid", 1, {}, Status(), slices=tuple(slices), memo=memo)
    return guard.assess(observation, GUARD, question)


def count(slices: list[Slice], question: Comparison, memo: dict[str, object]) -> int:
    observation = Observation("ns", "chat", "uid", 1, {}, Status(), slices=tuple(slices), memo=memo)
    return sources.count_requests(observation, GUARD, question.canary, question.since or 0.0, mirrored=False)


CHANGES = st.lists(
    st.sampled_from(
        [
            "more",
            "more",
            "more",
            "late",
            "very late",
            "twice",
            "out of order",
            "changed",
            "cut",
            "since",
            "canary",
            "watch",
        ]
    ),
    max_size=20,
)


@settings(max_examples=20)
@given(st.integers(0, 2**32), CHANGES, st.sampled_from([1.0, 1.3, 3.0]))
def test_the_answer_is_the_one_without_a_memo(seed: int, changes: list[str], worse: float) -> None:
    source, memo = random.Random(seed), dict[str, object]()
    slices = [piece for index in range(60) for piece in moment(source, index, worse)]
    ask, ends = Comparison("s", "c", since=0.0, now=120.0), 60
    record = BaselineRecord("s", "ttft", "s", {str(sketch.bucket_of(0.1)): 500})
    for change in changes:
        match change:
            case "more":
                slices = slices + [p for index in range(ends, ends + 12) for p in moment(source, index, worse)]
                ends += 12
            case "late" | "very late":
                back = ends - (3 if change == "late" else 40)
                late = [replace(piece, instance="h") for piece in moment(source, back, worse)]
                slices = sorted([*slices, *late], key=lambda piece: piece.start)
            case "twice":
                slices = [*slices[:-8], *(replace(piece) for piece in slices[-8:])]
            case "out of order":
                slices = [*slices[-40:], *slices[:-40]]
            case "changed":
                at = source.randrange(len(slices))
                slices = [*slices[:at], replace(slices[at], requests=slices[at].requests + 1), *slices[at + 1 :]]
            case "cut":
                slices = slices[len(slices) // 4 :]
            case "since":
                ask = replace(ask, since=(ask.since or 0.0) + 30.0)
            case "canary":
                ask = replace(ask, stable=ask.canary, canary=ask.stable)
            case "watch":
                ask = replace(
                    ask, after_promotion=not ask.after_promotion, baseline=() if ask.after_promotion else (record,)
                )
        ask = replace(ask, now=ends * SECONDS)
        assert judge(slices, ask, memo) == judge(slices, ask, {})
        assert count(slices, ask, memo) == count(slices, ask, {})


def added(memo: Mapping[str, object]) -> int:
    stored = memo["gateway"]
    assert isinstance(stored, StoredSums)
    return stored.added


def test_a_decision_adds_up_new_slices_and_not_an_hour_again() -> None:
    """Work, not time: slices added up by a decision after an hour of dense slices, also of two gateways of which one is
    always three slices late."""
    source, memo, ask = random.Random(1), dict[str, object](), Comparison("s", "c", since=0.0, now=3600.0)
    each = len(REVISIONS) * len(STRATA)
    slices = [piece for index in range(1800) for piece in moment(source, index, 1.0)]
    judge(slices, ask, memo)
    assert added(memo) == 1800 * each, "the first decision, after a restart say, knows nothing"
    unsettled = 11 * each
    for index in range(1800, 1830):
        late = [replace(piece, instance="h") for piece in moment(source, index - 3, 1.0)]
        slices = sorted([*slices, *moment(source, index, 1.0), *late], key=lambda piece: piece.start)
        judge(slices, replace(ask, now=index * SECONDS), memo)
        assert added(memo) <= 2 * unsettled + each
    for index in range(1830, 1860):
        slices = [*slices, *moment(source, index, 1.0)]
        judge(slices, replace(ask, now=index * SECONDS), memo)
    assert added(memo) <= 2 * each, "of gateways that answer in time: the new ones, and those that are settled now"


@given(st.integers(0, 2**32), st.sampled_from([1.0, 2.0]))
@settings(max_examples=30)
def test_running_sums_are_those_of_all_blocks(seed: int, worse: float) -> None:
    source, memo = random.Random(seed), dict[str, object]()
    judge(
        [piece for index in range(200) for piece in moment(source, index, worse)],
        Comparison("s", "c", 0.0, 400.0),
        memo,
    )
    stored = memo["gateway"]
    assert isinstance(stored, StoredSums)
    tests = [compared.test for strata in stored.latest.strata.values() for compared in strata.values()]
    assert len(tests) == len(STRATA) * len(GUARD.latency)
    for test in tests:
        assert test.blocks
        assert abs(test.odds - common_odds(test.blocks)) < 1e-9
        assert test.spread() == dispersion(test.blocks)
        assert test.total.canary == sum(split.canary for split in test.blocks)
        assert test.total.stable_hits == sum(split.stable_hits for split in test.blocks)
