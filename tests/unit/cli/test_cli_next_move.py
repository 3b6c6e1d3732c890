"""Protects what `rollout status` says of the next move: a time only where one is known."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from rich.console import Console

from pagefleet_cli.rollout.live import picture
from pagefleet_cli.rollout.progress import Place, Progress, progress, sentence

NOW = datetime.datetime(2026, 1, 2, 3, 10, 0, tzinfo=datetime.UTC).timestamp()


def read(phase: str, seconds: float, verdict: dict[str, Any] | None = None) -> Progress:
    """A rollout of one step of five minutes, for so many seconds in `phase`."""
    since = datetime.datetime.fromtimestamp(NOW - seconds, datetime.UTC).isoformat().replace("+00:00", "Z")
    service = {
        "metadata": {"name": "chat", "namespace": "team-a", "generation": 1},
        "spec": {"rollout": {"steps": [{"weight": 10, "hold": "5m"}]}},
        "status": {
            "observedGeneration": 1,
            "rollout": {"phase": phase, "step": 0, "since": since, **({"verdict": verdict} if verdict else {})},
        },
    }
    return progress(service, NOW)


@pytest.mark.parametrize(
    ("phase", "place"), [("Starting", Place.COMING), ("RollingBack", Place.COMING), ("Promoting", Place.DONE)]
)
def test_no_step_is_held_before_the_first_begins_and_after_the_last(phase: str, place: Place) -> None:
    """The pods' start was taken for a part of the step's hold, and a rollback for a step that is held."""
    state = read(phase, 60)
    assert [step.place for step in state.steps] == [place]
    assert (state.remaining, state.expected) == (None, None)
    assert "held" not in sentence(state)
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(picture(state))
    assert "next move is not known" in capture.get()


@pytest.mark.parametrize(
    ("seconds", "outcome", "wait", "expected"),
    [
        (60, "Inconclusive", None, 240),
        (400, "Inconclusive", None, None),
        (400, "Inconclusive", 9.0, 9),
        (400, "Passed", None, 0),
        (60, "Passed", None, 240),
    ],
)
def test_a_hold_that_is_over_foretells_nothing_while_no_verdict_can_be_foretold(
    seconds: float, outcome: str, wait: float | None, expected: float | None
) -> None:
    """While the stable had too few requests, the next move was said to come in 0 s, for as long as it lasted."""
    verdict = {"outcome": outcome, "message": "ttft p90: the stable has 24 of the 50 measured requests needed"}
    state = read("Step", seconds, verdict if wait is None else {**verdict, "expectedSeconds": wait})
    assert state.expected == expected
