"""The fleets of bench/rollout_guard.py are what the bench says: alike where revisions are alike, as busy as was asked for.

Protects the published figures about false rollbacks and detection: a world that treats the two revisions differently, or
that is idler than its name, would make them worthless.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # bench is no installed package

from bench.rolloutbench import intervals
from bench.rolloutbench.engines import Engine, Request, physics
from bench.rolloutbench.parts import PARTS, cells
from bench.rolloutbench.scenario import Regression, Scenario
from bench.rolloutbench.world import World


def computed(scenario: Scenario, worse: bool, count: int = 400) -> list[float]:
    """The seconds of single prompts on an idle engine of either revision."""
    times: list[float] = []
    events: list[tuple[float, object]] = []
    engine = Engine(
        "pod-1", "r", physics(scenario, "seed"), lambda at, call: events.append((at, call)), (lambda r, t: None,) * 2
    )
    if worse:
        engine.since = 0.0
    now = 0.0
    for number in range(count):
        now += 1000.0
        engine.put(Request(number, now, 0, 0, 512.0), now)
        while events:
            at, call = events.pop(0)
            if len(times) == number:
                times.append(at - now)
            call(at)  # type: ignore[operator]
    return times


def test_an_identical_canary_has_the_same_law_of_seconds() -> None:
    scenario = Scenario()
    assert computed(scenario, worse=True) == computed(scenario, worse=False)


@pytest.mark.parametrize("factor", [1.25, 3.0, 100.0])
def test_a_regression_of_compute_multiplies_every_prompt(factor: float) -> None:
    scenario = Scenario(regression=Regression(compute=factor))
    pairs = zip(computed(scenario, worse=True), computed(scenario, worse=False), strict=True)
    assert all(slow == pytest.approx(factor * fast) for slow, fast in pairs)


def test_a_regression_of_the_tail_leaves_the_other_prompts_alone() -> None:
    scenario = Scenario(regression=Regression(tail_share=0.08, tail_factor=3.0))
    usual = mean(computed(Scenario(), worse=False, count=2000))
    tail = mean(computed(scenario, worse=True, count=2000))
    assert tail / usual == pytest.approx(1 + 0.08 * 2, rel=0.05)


@pytest.mark.parametrize(("utilisation", "gateways"), [(0.3, 1), (0.7, 2)])
def test_the_utilisation_is_what_was_asked_for(utilisation: float, gateways: int) -> None:
    world = World(Scenario(utilisation=utilisation, gateways=gateways, history=130.0, rate=8.0, replicas=4), 3)
    world.run(until=50.0)  # the caches are warm then
    engines = world.engines[world.stable]
    before = sum(engine.busy_seconds for engine in engines)
    world.run(until=130.0)
    busy = sum(engine.busy_seconds for engine in engines) - before
    assert busy / 80 / len(engines) == pytest.approx(utilisation, rel=0.15)


def test_the_weights_and_the_canarys_replicas_follow_the_operators_decisions() -> None:
    world = World(Scenario(history=20.0, rate=2.0), 1)
    world.run(until=60.0)
    assert world.canary and len(world.engines[world.canary]) == 1 and len(world.engines[world.stable]) == 10
    share = world.sent[world.canary] / sum(world.sent.values())
    assert share == pytest.approx(0.1, abs=0.03)


def test_a_canary_that_fails_every_request_is_rolled_back_by_the_operator() -> None:
    result = World(Scenario(history=30.0, regression=Regression(errors=1.0)), 1).play()
    assert (result.outcome, result.reason) == ("RolledBack", "ErrorRate")
    assert 0 < result.requests < 100 and 0 < result.seconds < 100


def test_equal_seeds_are_equal_rollouts() -> None:
    scenario = Scenario(history=5.0, replicas=4, regression=Regression(errors=1.0), gateways=2)
    assert World(scenario, 1).play() == World(scenario, 1).play() != World(scenario, 2).play()


def test_every_cell_has_a_name_of_its_own_and_can_be_played_alone() -> None:
    names = [cell.name for own in PARTS.values() for cell in own]
    assert len(names) == len(set(names))
    assert all([cell.name for cell in cells([name])] == [name] for name in names)
    assert [cell.name for cell in cells(["x2"])] == [cell.name for cell in PARTS["x2"]]
    with pytest.raises(KeyError):
        cells(["x7"])


def test_intervals_of_shares_are_exact() -> None:
    """Known values of Clopper and Pearson, and the rule of three."""
    assert intervals.share(0, 300) == pytest.approx((0.0, 1 - 0.025 ** (1 / 300)), abs=1e-9)
    assert intervals.share(5, 10) == pytest.approx((0.18709, 0.81291), abs=1e-4)
    assert intervals.share(10, 10)[1] == 1.0
