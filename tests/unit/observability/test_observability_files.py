"""Protects the shipped rules and dashboards: they are what their source makes; every alert fires on a case of its own and
not on its neighbours; and only an alert that compares a canary with the stable revision can roll it back."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.alert_cases import CASES, Case, Series, condition

from pagefleet_local.assets import debian
from pagefleet_observability.__main__ import main
from pagefleet_observability.dashboards import DASHBOARDS
from pagefleet_observability.files import ALERTS, GROUPS, files
from pagefleet_operator.alerts.payload import parse
from pagefleet_operator.controller import MAX_PAUSE

MONITORING = Path(__file__).resolve().parents[3] / "manifests/monitoring"
ABOUT = {alert.name: alert for alert in ALERTS}


def test_the_shipped_files_are_what_their_source_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", str(MONITORING)]) == 0
    assert {f"dashboards/{path.name}" for path in MONITORING.glob("dashboards/*.json")} < set(files())
    assert main(["--check", str(tmp_path)]) == 1
    assert str(tmp_path / "rules.yaml") in capsys.readouterr().err
    assert main([str(tmp_path), "--runbooks", "https://wiki.example/runbooks"]) == 0
    assert "runbook_url: https://wiki.example/runbooks#pagefleetrolledback" in (tmp_path / "rules.yaml").read_text()


def promtool(*arguments: str | Path, folder: Path) -> None:
    command = [debian.tool("promtool"), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_reads_the_rules() -> None:
    promtool("check", "rules", "--lint-fatal", "rules.yaml", folder=MONITORING)
    operators = yaml.safe_load((MONITORING / "operator/prometheus-rule.yaml").read_text())
    assert operators["spec"] == yaml.safe_load((MONITORING / "rules.yaml").read_text())


def test_every_alert_has_a_case() -> None:
    assert sorted(case.alert for case in CASES) == sorted(ABOUT)


def _scenario(case: Case, name: str, series: Series, labels: dict[str, str] | None) -> dict[str, Any]:
    """Return a test of promtool: the samples of ALERTS at the case's time."""
    firing = f'ALERTS{{alertname="{case.alert}",alertstate="firing"}}'
    samples = []
    if labels is not None:
        own = {"alertname": case.alert, "alertstate": "firing", "severity": ABOUT[case.alert].severity.value, **labels}
        written = ",".join(f'{key}="{value}"' for key, value in own.items())
        samples = [{"labels": f"ALERTS{{{written}}}", "value": 1}]
    return {
        "name": f"{case.alert} {name}",
        "interval": case.interval,
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": [{"expr": firing, "eval_time": case.at, "exp_samples": samples}],
    }


def _read_by(alert: str) -> dict[str, Any]:
    """Return the shipped rules without those that the alert does not read: promtool evaluates each at every minute."""
    groups = yaml.safe_load((MONITORING / "rules.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    read = [rule for rule in rules if rule.get("alert") == alert]
    for reader in read:  # grows meanwhile
        read += [rule for rule in rules if rule.get("record", "?") in reader["expr"] and rule not in read]
    kept = [{**group, "rules": [rule for rule in group["rules"] if rule in read]} for group in groups]
    return {"groups": [group for group in kept if group["rules"]]}


def _play(case: Case, scenarios: list[dict[str, Any]], folder: Path) -> None:
    """Raises AssertionError with promtool's words where an expectation does not hold."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(_read_by(case.alert), sort_keys=False))
    test = {"rule_files": ["rules.yaml"], "evaluation_interval": case.interval, "tests": scenarios}
    (folder / "test.yaml").write_text(yaml.safe_dump(test, sort_keys=False))
    promtool("test", "rules", "test.yaml", folder=folder)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_alerts_fire_when_they_should_and_only_then(case: Case, tmp_path: Path) -> None:
    scenarios = [_scenario(case, "fires", case.fires, case.labels)]
    scenarios += [_scenario(case, f"is quiet {index}", quiet, None) for index, quiet in enumerate(case.quiet)]
    _play(case, scenarios, tmp_path)


@pytest.mark.parametrize("name", ["PagefleetRequestsFailed", "PagefleetCanaryFails", "PagefleetRolledBack"])
def test_an_alert_about_a_service_has_its_team_and_a_changed_contact_makes_no_second_one(
    name: str, tmp_path: Path
) -> None:
    case = next(case for case in CASES if case.alert == name)
    owner = 'pagefleet_service_owner{{{},team="{}",contact="{}",runbook=""}}'
    of = 'namespace="a",service="chat"'
    changed = {
        owner.format(of, "chat-platform", "#old"): "1+0x600",
        owner.format(of, "chat-platform", "#new"): "1+0x600",
    }
    other = {owner.format('namespace="a",service="other"', "others", ""): "1+0x600"}
    scenarios = [
        _scenario(case, "has its team", {**case.fires, **changed}, {**case.labels, "team": "chat-platform"}),
        _scenario(case, "has no other's", {**case.fires, **other}, case.labels),
    ]
    _play(case, scenarios, tmp_path)


def test_an_error_budget_that_burns_because_no_pod_is_left_pages(tmp_path: Path) -> None:
    """Then the gateway itself answers every request 503, and no revision has any."""
    case = next(case for case in CASES if case.alert == "PagefleetSLOBurnFast")
    refused = {series.replace('revision="c1"', 'revision=""'): values for series, values in case.fires.items()}
    outage = {series.replace('code="200"', 'code="503"'): values for series, values in refused.items()}
    assert any('code="503"' in series for series in outage)
    _play(case, [_scenario(case, "fires in an outage", outage, case.labels)], tmp_path)


def test_the_mean_price_of_a_week_is_that_of_all_operators_which_have_led(tmp_path: Path) -> None:
    """Another operator leads just when tokens become dear: its own series has no cheaper past."""
    case = next(case for case in CASES if case.alert == "PagefleetTokensDear")
    price = 'pagefleet_cost_per_1k_tokens{{namespace="a",service="chat",pod="{}"}}'
    dear = {price.format("o1"): "1+0x200", price.format("o2"): "_x201 9+0x10"}
    usual = {price.format("o1"): "1+0x200", price.format("o2"): "_x201 2+0x10"}
    scenarios = [_scenario(case, "fires", dear, case.labels), _scenario(case, "is quiet", usual, None)]
    _play(case, scenarios, tmp_path)


def test_a_picker_of_a_tenant_stands_in_for_no_gateway(tmp_path: Path) -> None:
    """It has the gateway's metrics, in its own namespace. The gateway runs beside the operator."""
    case = next(case for case in CASES if case.alert == "PagefleetGatewayAbsent")
    synced = 'pagefleet_gateway_watch_synced{{namespace="{}",pod="g",kind="pods"}}'
    leads = {f'pagefleet_operator_leader{{namespace="s",pod="o{pod}"}}': f"{pod}+0x60" for pod in (0, 1)}
    picker, gateway = {synced.format("team-a"): "1+0x60"}, {synced.format("s"): "1+0x60"}
    scenarios = [
        _scenario(case, "fires", leads | picker, {"namespace": "s"}),
        _scenario(
            case, "fires when the gateway goes", leads | picker | {synced.format("s"): "1+0x20"}, {"namespace": "s"}
        ),
        _scenario(case, "is quiet with a gateway", leads | picker | gateway, None),
        _scenario(case, "is quiet with pickers alone", picker, None),
    ]
    _play(case, scenarios, tmp_path)


@pytest.mark.parametrize(
    ("name", "kind", "reasons"),
    [
        # An image that cannot be pulled is the one after each try, and the other until the next, at most five minutes later.
        ("PagefleetServiceDegraded", "Degraded", ("ImagePullBackOff", "ErrImagePull")),
        # All replicas but the last are there: the load needs more than the maximum, and then not.
        ("PagefleetScalerAtMaximum", "Scaling", ("Refused", "AtMaximum")),
    ],
)
def test_a_condition_whose_reason_alternates_lasts(
    name: str, kind: str, reasons: tuple[str, str], tmp_path: Path
) -> None:
    case = next(case for case in CASES if case.alert == name)
    turns = ("1 1 1 stale 1 ", "_ _ _ 1 stale ")
    first, second = (condition(kind, "True", reason, turn * 12) for reason, turn in zip(reasons, turns, strict=True))
    passing = condition(kind, "True", reasons[0], "1+0x8 stale _x12 1+0x40")
    scenarios = [_scenario(case, "fires", first | second, case.labels), _scenario(case, "is quiet", passing, None)]
    _play(case, scenarios, tmp_path)


def test_a_batches_server_that_is_gone_or_starts_again_and_again_cannot_work(tmp_path: Path) -> None:
    """Its volume, say, cannot be mounted on another node: no page says that it is not ready."""
    case = next(case for case in CASES if case.alert == "PagefleetBatchesNotReady")
    ready = 'pagefleet_batches_ready{{namespace="s",pod="{}"}}'
    scenarios = [
        _scenario(case, "fires", {ready.format("b"): "1+0x10 _x50"}, case.labels),
        _scenario(case, "fires in a loop", {ready.format("b"): f"1+0x9 {'0 stale _x3 ' * 10}"}, case.labels),
        _scenario(
            case, "is quiet when replaced", {ready.format("b"): "1+0x20", ready.format("c"): "_x24 1+0x30"}, None
        ),
        _scenario(case, "is quiet where none is", {'pagefleet_gateway_watch_synced{namespace="s"}': "1+0x60"}, None),
    ]
    _play(case, scenarios, tmp_path)


def test_one_service_whose_decisions_all_fail_is_told(tmp_path: Path) -> None:
    """It is tried again ever more slowly, and each try may last as long as an admission webhook may: ten seconds."""
    case = next(case for case in CASES if case.alert == "PagefleetOperatorErrors")
    (series,) = case.fires
    failing = f"0+{60 / (MAX_PAUSE + 10):g}x60"
    _play(case, [_scenario(case, "fires", {series: failing}, case.labels)], tmp_path)


def test_an_expectation_that_does_not_hold_is_named(tmp_path: Path) -> None:
    """The test above can fail, both ways."""
    case = next(case for case in CASES if case.alert == "PagefleetRegressed")
    with pytest.raises(AssertionError, match=case.alert):
        _play(case, [_scenario(case, "fires", case.fires, None)], tmp_path)
    with pytest.raises(AssertionError, match=case.alert):
        _play(case, [_scenario(case, "is quiet", case.quiet[0], case.labels)], tmp_path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_only_an_alert_that_compares_revisions_reaches_the_operator(case: Case) -> None:
    """The route's matchers on the labels of the firing alert, and the webhook's own reading of them."""
    routes = yaml.safe_load((MONITORING / "alertmanager.yaml").read_text())["route"]["routes"]
    (matchers,) = [route["matchers"] for route in routes if route["receiver"] == "pagefleet"]
    assert sorted(matchers) == ['namespace!=""', 'revision!=""', 'service!=""', 'severity="page"']
    severity = ABOUT[case.alert].severity.value
    sent = severity == "page" and all(case.labels.get(name) for name in ("namespace", "service", "revision"))
    assert sent is (case.alert in ("PagefleetCanaryRejects", "PagefleetCanaryFails"))
    raw = {
        "status": "firing",
        "labels": {"alertname": case.alert, "severity": severity, **case.labels},
        "startsAt": "2026-01-01T00:00:00Z",
    }
    alerts = parse({"version": "4", "alerts": [raw]}, 1.0).alerts
    assert [one.record.revision for one in alerts if one.record.revision] == (["c1"] if sent else [])


def test_names_are_told_once() -> None:
    names = [rule.name for group in GROUPS for rule in group.rules]
    assert len(names) == len(set(names))


def test_a_panel_s_unit_is_that_of_its_series() -> None:
    """Grafana's `mbytes` are 1024 * 1024 bytes, and its `decmbytes` are a million."""
    units = {panel.unit for board in DASHBOARDS for panel in board.panels if ":mebibytes" in str(panel.queries)}
    assert units == {"mbytes"}


@pytest.mark.parametrize("board", ["fleet", "service"])
def test_the_first_decision_of_its_kind_is_shown(board: str, tmp_path: Path) -> None:
    """Its counter begins at 1, and for Prometheus a counter's first sample is no increase. A rollback may be the only one for months."""
    (panel,) = [panel for one in DASHBOARDS if one.name == board for panel in one.panels if panel.title == "Decisions"]
    ((expr, _),) = panel.queries
    for name, value in (("$namespace", "a"), ("$service", "chat")):
        expr = expr.replace(name, value)
    series = 'pagefleet_operator_decisions_total{{namespace="a",service="chat",kind="{}",pod="o1"}}'
    values = {"RolledBack": "_x20 1+0x40", "Scaled": "3+0x18 5+0x40", "Promoted": "1+0x60"}
    shown = {"21m": {"RolledBack": 1.0, "Scaled": 2.0, "Promoted": 0.0}, "40m": dict.fromkeys(values, 0.0)}
    test = {
        "interval": "1m",
        "input_series": [{"series": series.format(kind), "values": some} for kind, some in values.items()],
        "promql_expr_test": [
            {
                "expr": f"round({expr})",
                "eval_time": at,
                "exp_samples": [{"labels": f'{{kind="{kind}"}}', "value": value} for kind, value in counts.items()],
            }
            for at, counts in shown.items()
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}, sort_keys=False))
    promtool("test", "rules", "test.yaml", folder=tmp_path)


def test_dashboards_are_what_grafana_imports() -> None:
    assert {board.name for board in DASHBOARDS} == {"fleet", "service", "rollout", "engine"}
    for board in DASHBOARDS:
        document = json.loads((MONITORING / f"dashboards/{board.name}.json").read_text())
        panels = document["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        taken: set[tuple[int, int]] = set()
        for panel in panels:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken, f"{board.name}: {panel['title']} lies over another"
            assert place["x"] + place["w"] <= 24
            taken |= cells
        variables = {variable["name"] for variable in document["templating"]["list"]}
        for panel in board.panels:
            assert panel.text, f"{panel.title} has no description"
            for expr, _ in panel.queries:
                for name in variables - {"datasource"}:
                    assert f"{name}=$" not in expr, "values are quoted"
                used = {part.split('"')[0] for part in expr.split('"$')[1:]}
                assert used <= variables, (panel.title, used)
