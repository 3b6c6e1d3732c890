"""Traces of bench/rollout_guard.py read back as they were written, and others' rules decide on them as their sources say.

Protects the comparison with others: a trace that loses requests, or a rule that is weaker here than it is, would flatter us.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # bench is no installed package

from bench.rolloutbench import comparing, judging, peers, traces
from bench.rolloutbench.scenario import Regression, Scenario
from bench.rolloutbench.traces import Trace, TracedRequest


def constant(canary: float, stable: float = 0.3, failing: int = 0) -> Trace:
    """A trace of 10 requests a second whose times scatter by 10 %; one in `failing` canary requests fails."""
    requests = []
    for number in range(-300, 4000):
        revision = "canary" if number >= 0 and number % 10 == 0 else "stable"
        seconds = (canary if revision == "canary" else stable) * (1 + 0.01 * (number * 7 % 11))
        failed = failing and revision == "canary" and number % (10 * failing) == 0
        at = number / 10
        ttft, outcome = (None, "failed") if failed else (seconds, "answered")
        requests.append(TracedRequest(at, revision, f"{revision}-1", 500, ttft, at + seconds, outcome))
    return Trace("made", 1, 0.0, 0.15, 0.01, traces.SCHEDULE, tuple(requests))


def decisions(trace: Trace) -> dict[str, float | None]:
    known = peers.events(trace)
    return {name: peers.decide(judge, known, 600.0) for name, judge in peers.judges(trace)}


def test_a_trace_reads_back_as_it_was_written() -> None:
    scenario = Scenario(
        name="x3", rate=0.5, replicas=2, history=20.0, baseline=True, regression=Regression(compute=3.0)
    )
    played = traces.play(scenario, 7)
    assert traces.read(played.lines()) == replace(played, decided=None)
    assert {request.revision for request in played.requests} == {"stable", "baseline", "canary"}
    assert played.onset == 0.0 and min(request.at for request in played.requests) < -15


def test_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format"):
        traces.read([json.dumps({"format": "other", "version": 1})])


def test_nobody_rolls_back_equal_times() -> None:
    assert set(decisions(constant(0.3)).values()) == {None}


def test_constants_roll_back_after_their_number_of_bad_minutes() -> None:
    made = decisions(constant(0.9))
    assert made["Argo Rollouts (failureLimit 0)"] == 60.0
    assert made["Argo Rollouts (failureLimit 3)"] == 240.0
    assert made["Flagger (threshold 5)"] == 300.0


def test_a_canary_that_never_answers_is_seen_by_those_who_count_silence() -> None:
    trace = constant(0.3)
    hanging = [
        replace(one, ttft=None, end=None, outcome="open") if one.revision == "canary" else one for one in trace.requests
    ]
    made = decisions(replace(trace, requests=tuple(hanging)))
    assert made["Flagger (threshold 5)"] == 300.0
    assert made["Argo Rollouts (failureLimit 0)"] is None


def test_sequential_quantiles_need_as_many_requests_as_their_bands_are_wide() -> None:
    """All canary requests lie above all of the stable's: the bands must leave less than 1 together."""
    at = decisions(constant(0.9))["sequential quantiles (Netflix)"]
    judge = peers.SequentialQuantiles()
    assert at is not None and judge._band(int(at) + 1) + judge._band(int(at) * 9) < 1
    assert judge._band(int(at) - 3) + judge._band(int(at - 3) * 9) > 1


def test_failures_count_for_everybody() -> None:
    assert decisions(constant(0.3, failing=20))["Flagger (threshold 5)"] == 300.0


def test_kayenta_compares_with_the_fresh_baseline() -> None:
    def split(trace: Trace) -> Trace:
        """Every other stable request belongs to the baseline group."""
        requests = [
            replace(one, revision="baseline") if one.revision == "stable" and one.at >= 0 and place % 2 else one
            for place, one in enumerate(trace.requests)
        ]
        return replace(trace, requests=tuple(requests))

    name = "Kayenta (Mann-Whitney, fresh baseline)"
    assert decisions(split(constant(0.3))) == {name: None}
    assert decisions(split(constant(0.33))) == {name: None}  # within its tolerance of 25 %
    assert decisions(split(constant(0.6))) == {name: 60.0}


def test_a_program_is_asked_and_its_decision_is_scored(tmp_path: Path) -> None:
    traces.save(constant(0.9), tmp_path)
    program = tmp_path / "judge.py"
    program.write_text(
        "import json, sys\nassert len(list(sys.stdin)) == 4301\nprint(json.dumps({'rolledBackAt': 10.0}))\n"
    )
    [trace] = traces.load_all(tmp_path)
    at = judging.ask(f"{sys.executable} {program}", trace)
    assert comparing.decision("mine", trace, at) == comparing.Decision("mine", 10.0, 11)
    program.write_text("print('yes')")
    with pytest.raises(ValueError):
        judging.ask(f"{sys.executable} {program}", trace)
