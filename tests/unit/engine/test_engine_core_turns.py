"""Protects that a device's steps go in turn, with draft tokens, only while that brings more tokens a second."""

from __future__ import annotations

import pytest

from pagefleet_engine.core.turns import TurnPlanner


def run(planner: TurnPlanner, answers: int, turn: float, ahead: float, steps: int) -> list[bool]:
    """Run steps that bring so many tokens a second in turn and ahead. Return which went in turn."""
    ways = []
    for _ in range(steps):
        ways.append(planner.in_turn(answers))
        planner.observe(answers, ways[-1], answers, answers / (turn if ways[-1] else ahead))
    return ways


def test_steps_begin_with_a_trial_and_then_go_the_faster_way() -> None:
    for turn, ahead, faster in ((200.0, 100.0, True), (100.0, 200.0, False), (101.0, 100.0, False)):
        ways = run(TurnPlanner(), 4, turn, ahead, 100)
        assert ways[: TurnPlanner.TRIAL] == [True] * TurnPlanner.TRIAL
        later = ways[TurnPlanner.TRIAL + 1 :]
        assert later == [faster] * len(later)


@pytest.mark.parametrize(("turn", "ahead"), [(200.0, 100.0), (100.0, 200.0)])
def test_the_slower_way_is_tried_now_and_then_and_taken_when_it_has_become_faster(turn: float, ahead: float) -> None:
    planner, both = TurnPlanner(), TurnPlanner.TRIAL + TurnPlanner.AGAIN
    run(planner, 4, turn, ahead, both)
    later = run(planner, 4, turn, ahead, 10 * both)
    slower = sum(way != (turn > ahead) for way in later)
    assert 0 < slower <= 0.07 * len(later)
    run(planner, 4, ahead, turn, 4 * both)
    changed = run(planner, 4, ahead, turn, 10 * both)
    assert sum(way == (ahead > turn) for way in changed) > 0.9 * len(changed)


def test_a_trial_in_turn_is_told_once() -> None:
    planner = TurnPlanner()
    told = []
    for _ in range(TurnPlanner.TRIAL + 3):
        planner.in_turn(1)
        told.append(planner.trying)
    assert told == [True] + [False] * (len(told) - 1)


def test_few_answers_and_many_are_told_apart() -> None:
    planner = TurnPlanner()
    run(planner, 1, 300.0, 100.0, 60)
    run(planner, 64, 900.0, 1000.0, 60)
    assert (run(planner, 1, 300.0, 100.0, 1), run(planner, 64, 900.0, 1000.0, 1)) == ([True], [False])
