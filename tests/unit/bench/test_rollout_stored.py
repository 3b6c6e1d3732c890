"""Protects a campaign of hours that is stopped: rollouts that were played are not played again, and never stand for others."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # bench is no installed package

from bench.rolloutbench.campaign import Campaign
from bench.rolloutbench.parts import Cell, Target
from bench.rolloutbench.scenario import Regression, Scenario
from bench.rolloutbench.stored import Stored
from bench.rolloutbench.world import Result

RESULT = Result("RolledBack", "LatencyRegression", "worse", 7, 12.5, 30)
SCENARIO = Scenario(name="x2/u0.3/g1", regression=Regression(compute=2.0))


def test_a_result_is_of_its_scenario_and_seed(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Stored(path).put(SCENARIO, 3, RESULT)
    again = Stored(path)
    assert again.get(SCENARIO, 3) == RESULT
    assert again.get(SCENARIO, 4) is None
    assert again.get(replace(SCENARIO, rate=11.0), 3) is None


def test_a_half_written_line_is_absent_and_spoils_nothing(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Stored(path).put(SCENARIO, 3, RESULT)
    path.write_text(path.read_text()[:-5])
    assert Stored(path).get(SCENARIO, 3) is None
    Stored(path).put(SCENARIO, 4, RESULT)
    assert Stored(path).get(SCENARIO, 4) == RESULT


def test_a_campaign_plays_what_is_not_stored(tmp_path: Path) -> None:
    stored = Stored(tmp_path / "results.jsonl")
    scenario = Scenario(name="short", history=60.0, limit=20.0)
    stored.put(scenario, 0, RESULT)
    campaign = Campaign(1, 2, False, 2, stored)
    figures = campaign.figures(Cell(scenario, Target(), 2))
    assert (figures.rollouts, figures.reasons["LatencyRegression"]) == (2, 1)
    played = Stored(tmp_path / "results.jsonl").get(scenario, 1)
    assert played is not None
    assert played.outcome == "Open"


def test_a_good_canary_is_looked_at_twice(tmp_path: Path) -> None:
    """450 rollouts are enough when none of them was rolled back; one that was makes it all of them."""
    scenario, limits = replace(SCENARIO, name="identical"), Target(false=0.01)
    sound = replace(RESULT, outcome="Promoted", reason="")
    for rolled_back, played, met in ((0, 450, True), (1, 500, True), (20, 500, False)):
        stored = Stored(tmp_path / f"{rolled_back}.jsonl")
        for seed in range(500):
            stored.put(scenario, seed, RESULT if seed < rolled_back else sound)
        campaign = Campaign(1, None, False, 500, stored)
        figures = campaign.figures(Cell(scenario, limits, 500))
        (check,) = figures.checks
        assert (figures.rollouts, figures.rolled_back, check.met) == (played, rolled_back, met)
        assert rolled_back or check.high < 0.01
