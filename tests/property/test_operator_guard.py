"""Protects the guard's promises: identical revisions pass and are not rolled back, also under noise that both share. A
regression is convicted soon. One outlier, missing or impossible data decide nothing."""

from __future__ import annotations

import math
import os
import random

import pytest
from support.virtual.traffic import SLICE, Draw, lognormal, outcome, pareto, traffic

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis.sequential import Evidence, e_value, min_samples, upper_rank
from pagefleet_operator.domain.analysis.verdict import Outcome
from pagefleet_operator.domain.status.observation import Slice

# Row 17 of docs/reliability.md. PAGEFLEET_GUARD_RUNS says how many rollouts its shares are of (1,000 in the nightly run).
MAX_FALSE, MIN_FOUND = 0.01, 0.99
RUNS = int(os.environ.get("PAGEFLEET_GUARD_RUNS", "40"))


def looks(slices: list[Slice]) -> list[Outcome]:
    """What the guard says at every tenth slice: it is asked again and again."""
    ends = range(20, len(slices) + 1, 20)
    return [outcome(slices[:end]) for end in ends]


@pytest.mark.parametrize("draw", [lognormal, pareto])
def test_an_identical_canary_is_not_rolled_back_under_shared_bursts(draw: Draw) -> None:
    runs = [looks(traffic(seed, draw)) for seed in range(RUNS)]
    assert sum(Outcome.REGRESSED in run for run in runs) <= MAX_FALSE * RUNS
    assert sum(run[-1] is Outcome.PASSED for run in runs) >= 0.95 * RUNS


@pytest.mark.parametrize(("draw", "requests"), [(lognormal, 300), (pareto, 800)])
def test_a_canary_three_times_slower_is_convicted(draw: Draw, requests: int) -> None:
    """With as many requests on the stable. A heavier tail hides more: its p95 is less certain."""
    runs = (traffic(seed, draw, canary=3.0, bursts=False, slices=requests // 5) for seed in range(RUNS))
    convicted = sum(Outcome.REGRESSED in looks(run) for run in runs)
    assert convicted >= MIN_FOUND * RUNS


def test_half_as_much_again_is_convicted_in_the_end() -> None:
    """+50 % with 15 % accepted: subtle, and needs a few thousand requests."""
    run = traffic(3, lognormal, canary=1.5, per_slice=40.0, slices=300, bursts=False)
    assert outcome(run) is Outcome.REGRESSED


def test_errors_convict() -> None:
    assert outcome(traffic(1, lognormal, failing=0.2)) is Outcome.REGRESSED
    assert Outcome.REGRESSED not in looks(traffic(1, lognormal, failing=0.002))


def test_one_enormous_outlier_or_one_bad_slice_never_decides() -> None:
    slices = traffic(5, lognormal, bursts=False)
    last = max(index for index, piece in enumerate(slices) if piece.revision == "c")
    for count in (1, 50):
        odd = Slice("g", slices[last].start, SLICE, "c", "s", count, 0, {"ttft": {sketch.bucket_of(3600.0): count}})
        assert outcome([*slices[:last], odd]) is not Outcome.REGRESSED


def test_no_data_is_never_a_pass() -> None:
    assert outcome(None) is Outcome.INCONCLUSIVE
    assert outcome([]) is Outcome.INCONCLUSIVE
    only_stable = [piece for piece in traffic(1, lognormal) if piece.revision == "s"]
    assert outcome(only_stable) is Outcome.INCONCLUSIVE
    only_canary = [piece for piece in traffic(1, lognormal) if piece.revision == "c"]
    assert outcome(only_canary) is Outcome.INCONCLUSIVE
    garbage = Slice("g", 0.0, SLICE, "c", "s", -5, -7, {"ttft": {5: -1}})
    assert outcome([garbage] * 50) is Outcome.INCONCLUSIVE


def test_longer_prompts_alone_convict_nobody() -> None:
    """The canary gets long prompts, the stable short ones; within each length both are alike."""
    source, slices = random.Random(2), []
    for index in range(150):
        for revision, heavy in (("s", 0.2), ("c", 0.8)):
            for stratum, scale, share in (("s", 1.0, 1 - heavy), ("l", 6.0, heavy)):
                histogram: dict[int, int] = {}
                requests = round(12 * share)
                for _ in range(requests):
                    bucket = sketch.bucket_of(lognormal(source) * scale)
                    histogram[bucket] = histogram.get(bucket, 0) + 1
                slices.append(Slice("g", index * SLICE, SLICE, revision, stratum, requests, 0, {"ttft": histogram}))
    assert outcome(slices) is not Outcome.REGRESSED


def test_the_e_value_keeps_its_level_under_the_null() -> None:
    """Ville: under the null it reaches 1/alpha in at most alpha of the runs, looked at after every request."""
    source, crossed = random.Random(1), 0
    for _ in range(400):
        evidence = Evidence()
        for _ in range(400):
            evidence = evidence.plus(int(source.random() < 0.05), 1)
            if e_value(evidence, 0.05) >= 20:
                crossed += 1
                break
    assert crossed <= 0.05 * 400 + 10


def test_the_bound_of_a_quantile_lies_above_it() -> None:
    source, below = random.Random(4), 0
    for _ in range(300):
        sample = sorted(source.random() for _ in range(200))
        below += sample[upper_rank(200, 0.95, 0.05) - 1] < 0.95
    assert below <= 0.05 * 300 + 10
    enough = min_samples(0.95, 0.01)
    assert 0.95**enough <= 0.005 < 0.95 ** (enough - 1)


def test_the_sketch_is_within_two_percent() -> None:
    for seconds in (0.0002, 0.001, 0.05, 0.7, 3.0, 59.0):
        assert seconds * 0.999 <= sketch.upper(sketch.bucket_of(seconds)) <= seconds * 1.021
    values = [lognormal(random.Random(seed)) for seed in range(500)]
    histogram: dict[int, int] = {}
    for value in values:
        histogram[sketch.bucket_of(value)] = histogram.get(sketch.bucket_of(value), 0) + 1
    exact = sorted(values)[math.ceil(0.95 * 500) - 1]
    estimate = sketch.quantile(histogram, 0.95)
    assert estimate is not None
    assert exact <= estimate <= exact * 1.021
