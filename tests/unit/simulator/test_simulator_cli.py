"""`pagefleet simulate` answers a planner's question from a manifest and a trace, within the bounds that the operator would keep, and names
what is wrong with either."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from pagefleet_cli.main import app

DATA = Path(__file__).resolve().parents[2] / "data"
SERVICE = {
    "apiVersion": "pagefleet.io/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "chat"},
    "spec": {
        "model": {"source": "pvc://models/llama", "servedName": "llama"},
        "scaling": {"min": 1, "max": 4, "target": {"queueDepth": 4, "freeKVPages": "40%"}},
    },
}


@pytest.fixture
def service(tmp_path: Path) -> Path:
    path = tmp_path / "service.yaml"
    path.write_text(yaml.safe_dump(SERVICE))
    return path


def simulate(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["simulate", *map(str, arguments)])
    return result.exit_code, result.output


def test_others_are_calibrated_on_a_trace_of_another_seed(service: Path, tmp_path: Path) -> None:
    """Without --no-calibrate: the report names the setting of the HPA that was cheapest there, and ours has its manifest's."""
    code, output = simulate(
        "--service", service, "--trace", "builtin:step", "--hours", 0.05, "--rate", 1, "--scalers", "ours,hpa",
        "--report", tmp_path / "report",
    )  # fmt: skip
    assert code == 0, output
    ours, hpa = json.loads((tmp_path / "report/report.json").read_text())["scalers"]
    assert "freeKVPages 40%" in ours["setting"]
    assert hpa["setting"] and hpa["served"] > 0


def test_a_report_has_every_scaler_and_its_cost(service: Path, tmp_path: Path) -> None:
    folder = tmp_path / "report"
    code, output = simulate(
        "--service", service, "--trace", "builtin:step", "--hours", 0.1, "--rate", 4, "--scalers", "ours,kpa",
        "--no-calibrate", "--cost-per-hour", 2, "--report", folder,
    )  # fmt: skip
    assert code == 0, output
    report = json.loads((folder / "report.json").read_text())
    assert [one["scaler"] for one in report["scalers"]] == ["ours", "kpa"]
    for one in report["scalers"]:
        assert one["served"] == one["requests"] == report["trace"]["requests"]
        assert one["cost"] == pytest.approx(2 * one["accelerator_hours"], rel=1e-3)
        assert len(one["timeline"]["ready"]) == len(one["timeline"]["time"]) > 10
    assert "freeKVPages 40%" in report["scalers"][0]["setting"]
    assert (folder / "replicas.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("name", ["burstgpt-synthetic.csv", "azure-llm-synthetic.csv"])
def test_published_formats_are_replayed(service: Path, name: str) -> None:
    code, output = simulate("--service", service, "--trace", DATA / name, "--scalers", "ours", "--mode", "requests")
    assert code == 0, output
    assert "100.00%" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--scalers", "ours,best"), "best is not among"),
        (("--trace", "builtin:weekend"), "built-in traces are"),
        (("--trace", "nowhere.csv"), "nowhere.csv"),
        (("--profile", "nowhere.json"), "a profile is a JSON file or one of"),
        (("--rate", "0"), "--rate: must be above 0"),
        (("--trace", "builtin:steady", "--hours", "1e9", "--rate", "1e-8"), "--hours: must be at most 8784"),
        (("--mode", "slow"), "--mode"),
        (("--quota", "0"), "--quota"),
    ],
)
def test_what_is_wrong_is_named(service: Path, arguments: tuple[str, ...], message: str) -> None:
    code, output = simulate("--service", service, *arguments)
    assert code == 1
    assert message in " ".join(output.split())


def test_a_manifest_that_the_operator_would_refuse_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(yaml.safe_dump({**SERVICE, "spec": {**SERVICE["spec"], "scaling": {"min": 5, "max": 1}}}))
    code, output = simulate("--service", path)
    assert code == 1
    assert "spec.scaling" in output
    path.write_text("kind: Deployment")
    assert "exactly one InferenceService" in simulate("--service", path)[1]


@pytest.mark.parametrize("name", ["[/x].yaml", "run[a].yaml"])
def test_a_file_with_brackets_is_named_as_it_is(tmp_path: Path, name: str) -> None:
    code, output = simulate("--service", tmp_path / name)
    assert code == 1
    assert name in output


def test_a_day_that_no_month_has_is_named(tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    path.write_text("kind: InferenceService\nspec: {day: 2026-13-45}\n")
    code, output = simulate("--service", path)
    assert code == 1
    assert "month must be in 1..12" in output


def test_a_pipe_has_every_column(service: Path) -> None:
    """The cost is what was asked for; 80 columns have no room for it."""
    code, output = simulate(
        "--service", service, "--trace", "builtin:steady", "--hours", 0.05, "--rate", 1, "--scalers", "ours", "--cost-per-hour", 4,
    )  # fmt: skip
    assert code == 0, output
    assert all(column in output for column in ("cost", "per 1k tok", "changes", "flaps", "refused"))


@pytest.mark.parametrize("option", [("--speed", 10), ("--model", "GPT-4")])
def test_options_of_a_file_are_not_ignored_in_silence(service: Path, option: tuple[str, object]) -> None:
    code, output = simulate("--service", service, "--trace", "builtin:steady", "--hours", 0.05, "--rate", 1, *option)
    assert code == 1
    assert option[0] in output


def test_a_report_that_cannot_be_written_is_named_before_the_runs(service: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    code, output = simulate(
        "--service", service, "--trace", "builtin:steady", "--hours", 0.05, "--rate", 1, "--scalers", "ours", "--report", file,
    )  # fmt: skip
    assert code == 1
    assert "--report" in output and "SLO met" not in output


def test_a_fleet_never_begins_above_its_quota(service: Path, tmp_path: Path) -> None:
    """The load needs several replicas of 4 accelerators, and the cluster has 4: from the beginning there is one."""
    load = ("--service", service, "--trace", "builtin:steady", "--hours", 0.1, "--scalers", "ours", "--no-calibrate")
    code, output = simulate(*load, "--quota", 4, "--report", tmp_path)
    assert code == 0, output
    [ours] = json.loads((tmp_path / "report.json").read_text())["scalers"]
    assert max(ours["timeline"]["ready"]) == 1
    code, output = simulate(*load, "--quota", 3)
    assert code == 1
    assert "--quota: a replica of h100x4-llama-70b has 4 accelerators" in output


@pytest.mark.parametrize("price", ["nan", "-1"])
def test_a_price_that_is_none_is_refused(service: Path, price: str) -> None:
    code, output = simulate(
        "--service", service, "--trace", "builtin:steady", "--hours", 0.05, "--rate", 1, "--scalers", "ours", "--cost-per-hour", price,
    )  # fmt: skip
    assert code == 2
    assert "--cost-per-hour" in output


def written(path: Path, **spec: object) -> Path:
    path.write_text(yaml.safe_dump({**SERVICE, "spec": {**SERVICE["spec"], **spec}}))
    return path


def test_a_cost_ceiling_bounds_the_simulated_fleet_as_it_bounds_the_real_one(tmp_path: Path) -> None:
    service = written(
        tmp_path / "service.yaml",
        scaling={"min": 2, "max": 8, "warmSpares": 1, "schedule": [{"cron": "0 8 * * *", "duration": "1h", "min": 4}]},
        cost={"perAcceleratorHour": 2, "ceilingPerHour": 7},
    )
    code, output = simulate(
        "--service", service, "--trace", "builtin:flash", "--hours", 0.3, "--scalers", "ours,hpa", "--no-calibrate",
        "--report", tmp_path,
    )  # fmt: skip
    assert code == 0, output
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["bounds"]["min"], report["bounds"]["max"]) == (2, 2), (
        "three fit into the ceiling, one of them is a spare"
    )
    assert all(max(one["timeline"]["desired"]) == 2 for one in report["scalers"])
    said = " ".join(output.split())
    assert "spec.cost.ceilingPerHour allows 2" in said
    assert "not simulated: spec.scaling.schedule, spec.scaling.warmSpares" in said


@pytest.mark.parametrize(
    ("mode", "waits", "served"), [("requests", "5m", 2), ("requests", "10s", 1), ("fluid", "5m", 2)]
)
def test_a_service_sleeps_when_it_is_idle_and_its_gateways_hold_as_long_as_they_are_told(
    tmp_path: Path, mode: str, waits: str, served: int
) -> None:
    """With `min: 1` as well, as the operator has it. A replica starts for a minute or so."""
    trace = tmp_path / "two.csv"
    trace.write_text("Timestamp,Request tokens,Response tokens\n0,100,20\n1500,100,20\n")
    scaling = {"min": 1, "max": 2, "idleToZero": "2m"}
    service = written(tmp_path / "service.yaml", scaling=scaling, traffic={"queue": {"timeout": waits}})
    code, output = simulate(
        "--service", service, "--trace", trace, "--mode", mode, "--scalers", "ours,keda,kpa,hpa", "--no-calibrate", "--report", tmp_path
    )  # fmt: skip
    assert code == 0, output
    *sleeping, hpa = json.loads((tmp_path / "report.json").read_text())["scalers"]
    for one in sleeping:
        assert min(one["timeline"]["desired"]) == 0, one["scaler"]
        assert mode == "fluid" or one["served"] == served, one["scaler"]
        assert one["dropped"] == 2 - served
    assert min(hpa["timeline"]["desired"]) == 1
