"""Protects rules and dashboards from naming what does not exist: every metric, label, bucket, phase and reason that they
use is one that engine, gateway or operator has, or a page of another engine (tests/data); other engines' names are those
that the operator reads; each expression is PromQL; docs/observability.md names no other."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from support.piece_metrics import gateway_metrics
from support.promql import groupings, uses

from pagefleet_batches.jobs.batch import ENDED
from pagefleet_batches.metrics import Metrics as BatchesMetrics
from pagefleet_cli.rollout import commands as rollout
from pagefleet_contract.engine_metrics import OURS
from pagefleet_engine.api.observability.metrics import Metrics as EngineMetrics
from pagefleet_engine.core.requests import EngineConfig
from pagefleet_local.assets import debian
from pagefleet_observability.dashboards import DASHBOARDS
from pagefleet_observability.files import ALERTS, GROUPS
from pagefleet_observability.rules import engines
from pagefleet_observability.rules.recordings import TTFT_SECONDS
from pagefleet_observability.rules.rule import Alert, Recording
from pagefleet_operator.domain.runtimes import sglang, tgi, vllm
from pagefleet_operator.domain.status.status import Phase
from pagefleet_operator.web.own_metrics import Metrics as OperatorMetrics

CHECKOUT = Path(__file__).resolve().parents[2]
SUFFIXES = {
    "counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum"), "info": ("_info",),
}  # fmt: skip
TARGET = {"namespace", "pod", "job", "instance"}  # what every scrape adds
ENGINE_TARGET = {
    "service",
    "revision",
    "prefill_of",
    "prefill_revision",
}  # from the engine pods' labels (PodMonitor, scrape.yaml)


def registered(registry: CollectorRegistry) -> Iterator[tuple[str, str, set[str]]]:
    """Return (family, type, labels) of each collector. prometheus_client stores label names in a private attribute."""
    for collector in list(registry._collector_to_names):
        families = list(collector.collect()) if not hasattr(collector, "_labelnames") else []
        for family in families:
            yield family.name, family.type, set(family._labelnames)
        if hasattr(collector, "_labelnames"):
            yield collector._name, collector._type, set(collector._labelnames)


def _series() -> dict[str, set[str]]:
    """Return series name -> labels, of every piece that can be scraped."""
    engine = EngineMetrics("m", EngineConfig("file:///m"))
    sources = [
        (engine.registry, TARGET | ENGINE_TARGET),
        (gateway_metrics().registry, TARGET),
        (BatchesMetrics().registry, TARGET),
        (OperatorMetrics().registry, TARGET),
    ]
    labels_by_series = {
        name + suffix: labels | target | ({"le"} if suffix == "_bucket" else set())
        for registry, target in sources
        for name, kind, labels in registered(registry)
        for suffix in SUFFIXES[kind]
    }
    for histogram in engine._histograms:
        labels = {"model_name", *([histogram._label] if histogram._label else [])} | TARGET | ENGINE_TARGET
        labels_by_series |= {f"{histogram._name}{suffix}": labels for suffix in ("_count", "_sum")}
        labels_by_series[f"{histogram._name}_bucket"] = labels | {"le"}
    return labels_by_series


def _others() -> dict[str, set[str]]:
    """Return series name -> labels, of the engines that are not ours."""
    labels_by_series: dict[str, set[str]] = {}
    pages = [*(CHECKOUT / "tests/data").glob("metrics-*.txt"), *(CHECKOUT / "tests/data").glob("exporter-*.txt")]
    for page in pages:
        # Without the lines of types: the parser would give TGI's counters the suffix that they lack.
        lines = "\n".join(line for line in page.read_text().splitlines() if not line.startswith("#"))
        for family in text_string_to_metric_families(lines + "\n"):
            for sample in family.samples:
                labels_by_series.setdefault(sample.name, TARGET | ENGINE_TARGET).update(sample.labels)
    return labels_by_series


SCRAPED = _series()
OTHERS_SCRAPED = _others()
RECORDED = {
    rule.name: groupings(rule.expr) - {"le"} for group in GROUPS for rule in group.rules if isinstance(rule, Recording)
}
SERIES = SCRAPED | OTHERS_SCRAPED | RECORDED
RULES = [rule for group in GROUPS for rule in group.rules]
PANELS = [
    (f"{board.name}: {panel.title} {legend}", expr, legend)
    for board in DASHBOARDS
    for panel in board.panels
    for expr, legend in panel.queries
]


def check(expr: str, shown: str = "") -> None:
    used = uses(expr)
    assert used, expr
    for use in used:
        assert use.metric in SERIES, f"{use.metric} does not exist: {expr}"
        unknown = {label for label, _ in use.matchers} - SERIES[use.metric]
        assert not unknown, f"{use.metric} has no labels {unknown}: {expr}"
    known = set.union(*(SERIES[use.metric] for use in used))
    assert groupings(expr) <= known, f"{groupings(expr) - known} are no labels of {expr}"
    labels = set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", shown))
    assert labels <= (groupings(expr) or known) | known_by_record(expr), f"{shown} names labels that {expr} has not"


def known_by_record(expr: str) -> set[str]:
    """Return the labels of an expression that consists of recorded series."""
    label_sets = [RECORDED[use.metric] for use in uses(expr) if use.metric in RECORDED]
    return set.union(*label_sets) if label_sets else set()


def test_the_tokenizer_sees_what_is_there() -> None:
    expr = 'sum by (a, le) (rate(x_bucket{b="1",c=~"2|3"}[5m])) / on (a) group_left max(l:y:z > 3e2) and absent(w)'
    assert [(use.metric, use.matchers) for use in uses(expr)] == [
        ("x_bucket", (("b", "1"), ("c", "2|3"))), ("l:y:z", ()), ("w", ()),
    ]  # fmt: skip
    assert groupings(expr) == {"a", "le"}
    with pytest.raises(AssertionError, match="does not exist"):
        check("sum(pagefleet_kv_blocks)")
    with pytest.raises(AssertionError, match="has no labels"):
        check('pagefleet_weight{pods="1"}')
    with pytest.raises(AssertionError, match="are no labels"):
        check("sum by (node) (pagefleet_weight)")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rules_use_what_exists(rule: Recording | Alert) -> None:
    check(rule.expr, rule.summary if isinstance(rule, Alert) else "")


@pytest.mark.parametrize(("expr", "legend"), [panel[1:] for panel in PANELS], ids=[panel[0] for panel in PANELS])
def test_panels_use_what_exists(expr: str, legend: str) -> None:
    check(expr, legend)


def test_other_engines_names_are_those_that_the_operator_reads() -> None:
    """docs/runtimes.md, Metrics; of the pages only the share in use is a number in a series of its own in all of them."""
    others = (vllm.METRICS, sglang.METRICS, tgi.METRICS)
    for field in ("waiting", "running", "tokens", "preemptions", "ttft", "e2e", "itl", "queue"):
        names = tuple(getattr(metrics, field) for metrics in others if getattr(metrics, field))
        assert engines.OTHERS[getattr(OURS, field)] == names
    assert engines.OTHERS[engines.KV_USAGE] == tuple(metrics.kvUsage for metrics in others if metrics.kvUsage)
    assert engines.OTHERS[OURS.finished[0]] == tuple(name for metrics in others for name in metrics.finished)


@pytest.mark.parametrize("ours", engines.OTHERS)
def test_what_other_engines_tell_has_a_place(ours: str) -> None:
    """On a dashboard of engines, or in a rule."""
    used = {
        use.metric for expr in (*(panel[1] for panel in PANELS), *(rule.expr for rule in RULES)) for use in uses(expr)
    }
    for name in engines.OTHERS[ours]:
        assert used & {name, f"{name}_bucket"}, name


def test_variables_use_what_exists() -> None:
    for board in DASHBOARDS:
        for variable in board.variables:
            check(variable.series)
            assert variable.label in SERIES[uses(variable.series)[0].metric]


def test_panels_are_promql(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{index}:x", "expr": expr.replace("$__rate_interval", "1m")}
        for index, (_, expr, _) in enumerate(PANELS)
    ]
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        [debian.tool("promtool"), "check", "rules", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_matched_values_are_ones_that_are_written() -> None:
    """The objective's bucket, phases, conditions and their reasons, by the operator's own source."""
    domain = "".join(path.read_text() for path in (CHECKOUT / "operator/pagefleet_operator/domain").rglob("*.py"))
    phases = {phase.value for phase in Phase}
    statuses = {("status", status.value) for status in ENDED}
    for rule in RULES:
        for use in uses(rule.expr):
            for label, value in use.matchers:
                for one in value.split("|"):
                    if label == "phase":
                        assert one in phases, rule.name
                    elif use.metric.startswith("pagefleet_batches_"):
                        assert (label, one) in statuses, rule.name
                    elif label in ("type", "reason", "status"):
                        assert f'"{one}"' in domain, (rule.name, label, one)
    metrics = gateway_metrics()
    metrics._ttft.labels("ns", "chat", "r").observe(0.1)
    assert f'le="{TTFT_SECONDS}",namespace="ns"' in metrics.text().decode()


def test_the_documentation_names_no_metric_that_does_not_exist() -> None:
    """tests/contract/test_reference.py: docs/reference lists them all."""
    text = (CHECKOUT / "docs/observability.md").read_text()
    named = set(re.findall(r"`(pagefleet_[a-z0-9_]+)[`{]", text))
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in SCRAPED}
    assert named
    assert named - families - set(RECORDED) == set()


def test_every_alert_has_a_runbook() -> None:
    text = (CHECKOUT / "docs/runbooks.md").read_text()
    anchors = [heading.lower() for heading in re.findall(r"^## (\w+)$", text, re.MULTILINE)]
    assert sorted(anchors) == sorted(alert.anchor for alert in ALERTS)
    for alert in ALERTS:
        document = alert.document("docs/runbooks.md")
        assert document["annotations"]["runbook_url"] == f"docs/runbooks.md#{alert.name.lower()}"
        section = text.split(f"## {alert.name}\n")[1].split("\n## ")[0]
        for part in ("**Means**", "**Look**", "**Do**"):
            assert part in section, f"{alert.name} has no {part}"


def test_runbooks_ask_prometheus_about_the_alert_s_own_service() -> None:
    """Two namespaces may have a service of one name, and with the same spec also a revision of one name."""
    text = (CHECKOUT / "docs/runbooks.md").read_text()
    asked = re.findall(r"`([^`\n]*\{[^`\n]*\}[^`\n]*\[\w+\][^`\n]*)`", text)
    assert len(asked) == 2
    for expr in asked:
        check(expr)
        for use in uses(expr):
            assert {"namespace", "service"} <= {label for label, _ in use.matchers}, expr


def test_runbooks_name_commands_that_exist() -> None:
    text = (CHECKOUT / "docs/runbooks.md").read_text()
    named = set(re.findall(r"pagefleet rollout (\w+)", text))
    registered_commands = {
        info.name or info.callback.__name__ for info in rollout.app.registered_commands if info.callback
    }
    assert named
    assert named <= registered_commands


def test_what_is_told_to_other_scalers_uses_what_exists() -> None:
    """KEDA's query, the HPA's metric and prometheus-adapter's rule as docs/autoscaling.md has them, and every metric that it names."""
    text = (CHECKOUT / "docs/autoscaling.md").read_text()
    blocks = [
        document
        for block in re.findall(r"```yaml\n(kind: .*?|apiVersion: keda.*?|externalRules:.*?)```", text, re.S)
        for document in yaml.safe_load_all(block)
    ]
    (keda,) = (block for block in blocks if block.get("kind") == "ScaledObject")
    (hpa,) = (block for block in blocks if block.get("kind") == "HorizontalPodAutoscaler")
    (adapter,) = (block for block in blocks if "externalRules" in block)
    assert hpa["spec"]["scaleTargetRef"] == keda["spec"]["scaleTargetRef"]
    (external,) = (metric["external"] for metric in hpa["spec"]["metrics"])
    assert external["target"]["type"] == "AverageValue"
    assert external["metric"]["name"] in {uses(rule["seriesQuery"])[0].metric for rule in adapter["externalRules"]}
    assert keda["spec"]["scaleTargetRef"]["kind"] == "InferenceService"
    for trigger in keda["spec"]["triggers"]:
        check(trigger["metadata"]["query"])
    for rule in adapter["externalRules"]:
        check(rule["seriesQuery"])
        template = {
            "<<.Series>>": uses(rule["seriesQuery"])[0].metric,
            "<<.LabelMatchers>>": 'namespace="a",service="b"',
        }
        query = rule["metricsQuery"]
        for name, value in template.items():
            query = query.replace(name, value)
        check(query)
    named = {name for name in re.findall(r"`(pagefleet_\w+)", text) if not name.endswith("_")}
    assert named - set(SERIES) == set()
