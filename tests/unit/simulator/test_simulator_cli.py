"""`pagefleet simulate` answers a planner's question from a manifest and a trace, and names what is wrong with either."""

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
