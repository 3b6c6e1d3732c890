"""Protects the built-in workloads: they have the numbers that their documentation states, priorities decide who waits, and the
promises of `spec.slo` are counted as the gateways count them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from pagefleet_cli.main import app
from pagefleet_contract.slo import Objective
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_simulator.fleet.profile import Profile, StepTime
from pagefleet_simulator.fleet.request import Arrival
from pagefleet_simulator.fleet.view import Bounds
from pagefleet_simulator.planner import left_out, priorities
from pagefleet_simulator.results.outcome import Ends
from pagefleet_simulator.results.promises import kept
from pagefleet_simulator.scalers.hpa import Hpa, Metric
from pagefleet_simulator.simulation import Setting, Simulation
from pagefleet_simulator.traces import workloads

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
INF = float("inf")


def columns(name: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    found = workloads.build(name, seed).arrivals
    at, prompts, outputs = np.array([(one.at, one.prompt, one.output) for one in found]).T
    assert (np.diff(at) >= 0).all()
    return at, prompts, outputs


def rate(at: np.ndarray, begin: float, end: float) -> float:
    return float(((at >= begin) & (at < end)).sum()) / (end - begin)


def test_live_chat_is_1500_users_who_come_within_a_minute() -> None:
    at, prompts, outputs = columns("live-chat-spike")
    assert rate(at, 0, 900) == pytest.approx(150 / 60, rel=0.1)
    assert rate(at, 960, 2100) == pytest.approx(1500 / 60, rel=0.05)
    assert rate(at, 2160, 3600) == pytest.approx(150 / 60, rel=0.1)
    assert (prompts.min(), prompts.max()) == (700, 1200)
    assert np.median(outputs) == pytest.approx(180, rel=0.05)


def test_summaries_are_300_documents_of_3000_to_6000_tokens() -> None:
    at, prompts, _ = columns("compliance-summaries")
    assert len(at) == 300
    assert at.max() < 10
    assert 3000 <= prompts.min() < 3100
    assert 5900 < prompts.max() <= 6000


def test_coding_is_800_sessions_of_about_900_tokens_and_answers_of_50_to_200() -> None:
    at, prompts, outputs = columns("coding-questions")
    assert rate(at, 0, 3600) == pytest.approx(800 / 45, rel=0.05)
    assert np.median(prompts) == pytest.approx(900, rel=0.02)
    assert (outputs.min(), outputs.max()) == (50, 200)


def test_a_hundred_readers_share_one_document_of_10000_tokens() -> None:
    found = workloads.build("long-document").arrivals
    assert {(one.group, one.shared) for one in found} == {(0, 10_000)}
    assert all(one.prompt > 10_000 for one in found)
    at, _, _ = columns("long-document")
    assert rate(at, 60, 1200) == pytest.approx(100 / 60, rel=0.1)


def test_the_mixture_has_all_requests_of_its_parts_each_with_its_class() -> None:
    mixed = workloads.build("mixed-priorities").arrivals
    by_class = {name: sum(1 for one in mixed if one.priority == name) for name in ("interactive", "internal", "batch")}
    assert by_class["batch"] == 300
    assert by_class["internal"] == pytest.approx(800 / 45 * 3600, rel=0.05)
    assert sum(by_class.values()) == len(mixed)


@pytest.mark.parametrize("name", sorted(set(workloads.WORKLOADS) - {"mixed-priorities"}))  # it is made of the others
def test_the_same_seed_gives_the_same_workload(name: str) -> None:
    assert workloads.build(name, 1) == workloads.build(name, 1)
    assert workloads.build(name, 1) != workloads.build(name, 2)


def overloaded(priorities: tuple[str, ...]) -> Ends:
    """People arrive while a small engine has 40 documents to read."""
    profile = Profile("small", StepTime(0.01, 1e-4, 1e-3), pages=500, step_tokens=256, max_sequences=4)
    jobs = [Arrival(0.0, 800, 200, priority="batch")] * 40
    people = [Arrival(1.0 + index, 100, 20, priority="people") for index in range(20)]
    setting = Setting(profile, Bounds(1, 1), priorities=priorities)
    ends = Simulation(setting, Hpa(2.0, Metric.CONCURRENCY), [*jobs, *people], 60.0).run().ends
    assert ends is not None
    return ends


def test_the_first_class_goes_first_where_the_scheduler_goes_by_priority() -> None:
    sorted_, in_turn = overloaded(("people", "batch")), overloaded(())
    people = sorted_.priority == "people"
    assert sorted_.ttft[people].max() < 10 < in_turn.ttft[people].min()
    assert sorted_.e2e[~people].max() >= in_turn.e2e[~people].max()


@pytest.mark.parametrize(
    ("engine", "by_class"),
    [
        ({}, True), ({"runtime": "pagefleet", "scheduling": {"policy": "fcfs"}}, False), ({"scheduling": {"policy": "priority"}}, True),
        ({"runtime": "vllm"}, False), ({"runtime": "vllm", "scheduling": {"policy": "priority"}}, True),
    ],
)  # fmt: skip
def test_classes_decide_where_the_engine_is_told_a_priority(engine: dict[str, Any], by_class: bool) -> None:
    """Our engine orders by priority unless the spec says otherwise; vLLM only where the spec says so."""
    classes = [{"name": name, "header": {"x-class": name}} for name in ("people", "batch")]
    spec = parse({"model": {"source": "hf://o/m"}, "engine": engine, "traffic": {"priorities": classes}})
    assert isinstance(spec, Spec)
    assert priorities(spec) == (("people", "batch") if by_class else ())


def test_what_a_manifest_asks_for_and_no_simulation_has_is_named() -> None:
    raw = {
        "model": {"source": "hf://o/m"},
        "traffic": {"circuitBreaker": {"maxRequestsPerPod": 8}, "peak": {"maxOutputTokens": 64}},
        "scaling": {"max": 3, "warmSpares": 1},
        "cost": {"perAcceleratorHour": 2, "budget": {"perMonth": 100}},
        "slo": {"objectives": [{"name": "up", "signal": "errors", "maxRate": "1%"}], "atRisk": {"maxOutputTokens": 64}},
    }
    spec = parse(raw)
    assert isinstance(spec, Spec)
    assert left_out(spec) == (
        "spec.scaling.warmSpares", "spec.traffic.circuitBreaker", "spec.traffic.peak", "spec.cost.budget", "spec.slo.atRisk"
    )  # fmt: skip
    split = parse({"model": {"source": "hf://o/m"}, "resources": {"accelerator": {"name": "nvidia.com/gpu"}},
                   "engine": {"runtime": "vllm", "disaggregation": {"prefill": {"replicas": 1}}}})  # fmt: skip
    assert isinstance(split, Spec)
    assert left_out(split) == ("spec.engine.disaggregation",)


def test_a_promise_counts_its_class_and_a_request_without_an_answer_misses_it() -> None:
    ends = Ends(
        priority=np.array(["live", "live", "live", "batch"]),
        ttft=np.array([0.5, 3.0, INF, 9.0]),
        tpot=np.array([0.01, 0.01, INF, 0.2]),
        e2e=np.array([1.0, 4.0, INF, 20.0]),
        refused=np.array([False, False, True, False]),
    )
    promises = (
        Objective("live", "ttft", 0.05, 2.0, "live"),
        Objective("all", "e2e", 0.5, 10.0),
        Objective("failed", "errors", 0.25),
        Objective("none", "ttft", 0.05, 1.0, "nobody"),
    )
    live, every, failed, none = kept(ends, promises)
    assert (live.requests, live.missed, live.broken) == (3, 2, True)
    assert (every.requests, every.missed, every.broken) == (4, 2, False)
    assert (failed.requests, failed.missed, failed.broken) == (4, 1, False)
    assert (none.share, none.broken) == (None, False)


def test_a_workload_has_its_own_numbers() -> None:
    service = ("--service", str(EXAMPLES / "coding-questions.yaml"))
    result = CliRunner().invoke(app, ["simulate", *service, "--trace", "builtin:coding-questions", "--rate", "3"])
    assert result.exit_code == 1
    assert "--rate and --hours are for shapes" in " ".join(result.output.split())


def test_the_command_reports_every_promise_of_the_service(tmp_path: Path) -> None:
    arguments = (
        "simulate", "--service", EXAMPLES / "compliance-summaries.yaml", "--trace", "builtin:compliance-summaries",
        "--profile", "h100-llama-8b", "--scalers", "ours", "--no-calibrate", "--report", tmp_path,
    )  # fmt: skip
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    assert "done: 99% of e2e within 1500 s" in result.output
    (scaler,) = json.loads((tmp_path / "report.json").read_text())["scalers"]
    (promise,) = scaler["promises"]
    assert (promise["name"], promise["requests"], promise["broken"]) == ("done", 300, False)


def test_one_of_several_services_is_chosen_by_name() -> None:
    def run(*more: str) -> str:
        path = EXAMPLES / "mixed-priorities.yaml"
        arguments = ("simulate", "--service", str(path), "--trace", "builtin:step", "--hours", "0.1", "--rate", "1")
        result = CliRunner().invoke(app, [*arguments, "--scalers", "ours", "--no-calibrate", *more])
        return " ".join(result.output.split())

    assert "choose with --name: assistant, assistant-small" in run()
    assert "has no InferenceService 'other'" in run("--name", "other")
    assert "1 to 2 replicas" in run("--name", "assistant-small")
