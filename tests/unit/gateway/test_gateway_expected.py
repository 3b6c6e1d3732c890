"""Protects the time to first token that a gateway expects: nothing before enough is known, then what the load costs, however
unlike the loads are. Outliers do not spoil it, an older world is forgotten, and no load makes an answer quicker."""

from __future__ import annotations

import math
import random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_gateway.cluster.steps import finish
from pagefleet_gateway.picking.expected import MIN_MEASUREMENTS, MIN_SECONDS, ExpectedTimes, Load, Model

KEY, OTHER = ("team", "chat"), ("team", "other")
GRID = [Load(tokens, running) for tokens in (50.0, 500.0, 5_000.0, 20_000.0) for running in (0.0, 3.0, 12.0)]


def truth(load: Load) -> float:
    return 0.02 + 0.002 * load.running + (1e-4 + 4e-6 * load.running) * load.tokens


def draw(source: random.Random) -> Load:
    return Load(source.lognormvariate(6.5, 1.2), float(source.randrange(15)))


def taught(count: int, seed: int = 1, noise: float = 0.0, outliers: float = 0.0, slower: float = 1.0) -> Model:
    model, source = Model(), random.Random(seed)
    teach(model, source, count, noise, outliers, slower)
    return model


def teach(
    model: Model, source: random.Random, count: int, noise: float = 0.0, outliers: float = 0.0, slower: float = 1.0
) -> None:
    for _ in range(count):
        load = draw(source)
        seconds = slower * truth(load) * source.lognormvariate(0.0, noise)
        model.learn(load, seconds * (100.0 if source.random() < outliers else 1.0))


def worst(model: Model, slower: float = 1.0) -> float:
    """The largest ratio of the expectation and the truth, either way."""
    ratios = [(model.seconds(load) or math.nan) / (slower * truth(load)) for load in GRID]
    return max(max(ratio, 1 / ratio) for ratio in ratios)


def test_nothing_is_expected_before_enough_is_known() -> None:
    assert taught(MIN_MEASUREMENTS - 1).seconds(GRID[0]) is None
    assert worst(taught(MIN_MEASUREMENTS)) < 1.02


@pytest.mark.parametrize("seed", range(5))
def test_it_learns_what_the_load_costs(seed: int) -> None:
    assert worst(taught(3000, seed)) < 1.01
    assert worst(taught(3000, seed, noise=0.25)) < 1.15


@pytest.mark.parametrize("seed", range(5))
def test_outliers_do_not_spoil_it(seed: int) -> None:
    """One answer in fifty takes a hundred times as long. Plain least squares would expect three times the truth."""
    assert worst(taught(3000, seed, outliers=0.02)) < 1.15
    assert worst(taught(MIN_MEASUREMENTS, seed, outliers=0.02)) < 2.0


def test_an_older_world_is_forgotten() -> None:
    model, source = taught(3000, noise=0.2), random.Random(2)
    teach(model, source, 5000, noise=0.2, slower=3.0)
    assert worst(model, slower=3.0) < 1.15
    teach(model, source, 5000, noise=0.2)
    assert worst(model) < 1.15


def test_unequal_loads_have_equal_relative_times() -> None:
    """One pod has long queues and the others none: divided by what was expected, their times are alike."""
    source, model = random.Random(3), Model()
    relatives: dict[bool, list[float]] = {False: [], True: []}
    for number in range(8000):
        busy = number % 8 == 0
        load = Load(source.lognormvariate(6.5, 0.8) * (6 if busy else 1), float(source.randrange(6) + 8 * busy))
        seconds = truth(load) * source.lognormvariate(0.0, 0.25)
        expected = model.seconds(load)
        if number >= 4000 and expected is not None:
            relatives[busy].append(seconds / expected)
        if not busy:
            model.learn(load, seconds)
    assert mean(relatives[True]) == pytest.approx(mean(relatives[False]), rel=0.08)
    assert sorted(relatives[True])[475] == pytest.approx(sorted(relatives[False])[int(0.95 * 3500)], rel=0.08)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.floats(0, 1e7), st.integers(0, 500), st.floats(0, 1e5)), min_size=MIN_MEASUREMENTS, max_size=200
    )
)
def test_whatever_was_measured_more_load_never_takes_less_time(measured: list[tuple[float, int, float]]) -> None:
    model = Model()
    for tokens, running, seconds in measured:
        model.learn(Load(tokens, float(running)), seconds)
    ordered = [model.seconds(Load(10.0**power, 2.0 * power)) for power in range(8)]
    known = [value for value in ordered if value is not None]
    assert len(known) == 8 and known == sorted(known)
    assert known[0] >= MIN_SECONDS and math.isfinite(known[-1])


def test_services_learn_apart_and_are_forgotten() -> None:
    times, source = ExpectedTimes(), random.Random(4)
    for _ in range(100):
        load = draw(source)
        times.learn(KEY, load, truth(load))
        times.learn(OTHER, load, 2 * truth(load))
    one, other = times.seconds(KEY, GRID[4]), times.seconds(OTHER, GRID[4])
    assert one is not None and other == pytest.approx(2 * one, rel=0.01)
    finish(times.retain({OTHER: None}))
    assert times.seconds(KEY, GRID[4]) is None and times.seconds(OTHER, GRID[4]) == other
