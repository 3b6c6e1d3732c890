"""Protects the table of step kinds: every kind has a row that its readers can use, whatever a stored step looks like."""

from __future__ import annotations

from typing import Any

import pytest

from pagefleet_cli.rollout.progress import progress
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.spec.schema import step_kinds
from pagefleet_operator.domain.spec.schema.step_kinds import OPTIONS, STEP, STEP_KINDS, RolloutStep, StepKind
from pagefleet_operator.domain.status.status import Phase

ROUTE = {"header": {"x": "y"}}
# A step of each kind, its typed value, the decision's words, the command line's words and its shortest time.
STEPS: dict[StepKind, tuple[dict[str, Any], RolloutStep, str, str, float | None]] = {
    StepKind.WEIGHT: (
        {"weight": 10, "hold": "5m", "minRequests": 7},
        RolloutStep(10, 300.0, min_requests=7),
        "gets 25 % of requests",
        "10 % (hold 5m, 7 requests)",
        300.0,
    ),
    StepKind.PAUSE: (
        {"pause": {}},
        RolloutStep(None, None, StepKind.PAUSE),
        "is paused until it is resumed at 25 %",
        "pause until resumed",
        None,
    ),
    StepKind.PREVIEW: (
        {"preview": {"duration": "1h"}},
        RolloutStep(None, 3600.0, StepKind.PREVIEW),
        "gets only requests with the header of spec.rollout.route, for 3600 s",
        "preview 1h",
        3600.0,
    ),
    StepKind.MIRROR: (
        {"mirror": "50%", "hold": "1m"},
        RolloutStep(None, 60.0, StepKind.MIRROR, mirror=50.0),
        "gets copies of 50 % of requests",
        "mirror 50%",
        60.0,
    ),
    StepKind.LOAD_TEST: (
        {"loadTest": {"requests": 9, "timeout": "2m"}},
        RolloutStep(None, 120.0, StepKind.LOAD_TEST, profile={"requests": 9}),
        "is put under a synthetic load",
        "load test",
        None,
    ),
}


def test_every_kind_has_a_row_a_phase_of_its_own_and_a_field() -> None:
    assert list(STEP_KINDS) == list(StepKind) == list(STEPS)
    assert len({Phase(row.phase) for row in STEP_KINDS.values()}) == len(STEP_KINDS)
    assert set(STEP["properties"]) == {*StepKind, *OPTIONS}
    assert {name for row in STEP_KINDS.values() for name in row.options} == set(OPTIONS)


@pytest.mark.parametrize("kind", StepKind)
def test_a_step_is_read_and_described(kind: StepKind) -> None:
    raw, typed, decision, text, hold = STEPS[kind]
    parsed = parse({"model": {"source": "file:///m"}, "rollout": {"steps": [raw], "route": ROUTE}})
    assert isinstance(parsed, Spec), parsed
    assert parsed.rollout.steps == (typed,)
    assert STEP_KINDS[kind].decision(typed, 25) == decision
    headline = STEP_KINDS[kind].headline.format(canary="c1", weight=25, step=" (step 1 of 2)")
    assert "c1" in headline
    assert "(step 1 of 2)" in headline
    (shown,) = progress({"metadata": {"name": "a"}, "spec": {"rollout": {"steps": [raw]}}}, 0.0).steps
    assert (shown.text, shown.hold) == (text, hold)


@pytest.mark.parametrize(
    ("raw", "text", "hold"),
    [
        ({"weight": 5, "hold": "soon"}, "5 % (hold soon)", None),
        ({"pause": None}, "pause until resumed", None),
        ({"preview": {"duration": "soon"}}, "preview soon", None),
        ({"mirror": "much"}, "mirror much", None),
        ({"shadow": {}, "hold": "1m"}, "shadow", 60.0),
        ({}, "step", 0.0),
    ],
)
def test_the_command_line_copes_with_steps_that_this_version_would_refuse(
    raw: dict[str, Any], text: str, hold: float | None
) -> None:
    (shown,) = progress({"metadata": {"name": "a"}, "spec": {"rollout": {"steps": [raw]}}}, 0.0).steps
    assert (shown.text, shown.hold) == (text, hold)


def test_a_step_without_a_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs one of weight, pause, preview, mirror, loadTest"):
        step_kinds.read({"hold": "1m"})
