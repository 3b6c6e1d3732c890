"""Protects the way from the pieces' own /metrics to the dashboards: a real Prometheus with the shipped rules scrapes what
engine, gateway and operator write, keeps the labels that they tell, and every panel can be asked of it; pages of other
engines fill the panels of what they tell, and no others."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.piece_metrics import gateway_metrics
from support.prometheus import Asked, Text, prometheus, served

from pagefleet_contract.engine_metrics import WAITING
from pagefleet_engine.api.observability.metrics import Metrics as EngineMetrics
from pagefleet_engine.core.requests import EngineConfig, EngineStats
from pagefleet_local.fleet.kubectl import until
from pagefleet_observability.dashboards import DASHBOARDS
from pagefleet_observability.rules.engines import level
from pagefleet_observability.rules.recordings import REQUESTS
from pagefleet_operator.domain.status.plan import Plan
from pagefleet_operator.domain.status.status import (
    Phase,
    RevisionRecord,
    RolloutRecord,
    SignalRecord,
    Status,
    Weight,
)
from pagefleet_operator.web.own_metrics import Metrics as OperatorMetrics

MONITORING = Path(__file__).resolve().parents[2] / "manifests/monitoring"
DATA = Path(__file__).resolve().parents[1] / "data"
# Panels of the dashboard of engines: no other engine tells the same.
EXPORTERS = {"Utilisation", "Memory used", "Memory left"}  # of accelerators; their exporter is not scraped here
OURS_ONLY = {
    "Pages by state", "Slots without a token", "Prefix cache hits", "Speculation: accepted draft tokens", "Waiting tokens",
    "Batch size", "Step time by phase, p95", "Prompt tokens", "Generated tokens", "Cancellations", "Engines", "Asleep",
}  # fmt: skip


def texts() -> dict[str, Text]:
    """Return each piece's metrics of service team-a/chat. The counters grow a little with each call."""
    gateway, engine, operator = gateway_metrics(), EngineMetrics("m", EngineConfig("file:///m")), OperatorMetrics()
    judged = SignalRecord("ttft", "s", "Inconclusive", 90, 10, stable_p95=0.5, canary_p95=0.6, evidence=3.0)
    operator.planned(
        "team-a",
        "chat",
        Plan(
            Status(
                stable="old",
                canary="new",
                traffic=(Weight("old", 90), Weight("new", 10)),
                rollout=RolloutRecord(Phase.STEP, verdicts=(judged,)),
                revisions=(
                    RevisionRecord("old", 0.0, ready=2, desired=2),
                    RevisionRecord("new", 0.0, ready=1, desired=1),
                ),
            )
        ),
    )

    def gateway_text() -> bytes:
        gateway._requests.labels("team-a", "chat", "new", "200").inc(9)
        gateway._requests.labels("team-a", "chat", "new", "400").inc(3)
        gateway._ttft.labels("team-a", "chat", "new").observe(0.2)
        gateway.record_refusal("team-a", "chat", 429)
        return gateway.text()

    def engine_text() -> bytes:
        engine.load(EngineStats(3, 2, 100, 4, 5, 0, 0, 0, 9))
        engine.ttft.observe(0.2)
        return engine.text()

    return {"engine": engine_text, "gateway": gateway_text, "operator": operator.text}


def found(name: str, port: str, namespace: str, pod: str) -> dict[str, str]:
    """Return what Kubernetes discovery tells about a pod."""
    return {
        "__meta_kubernetes_pod_label_app_kubernetes_io_name": name,
        "__meta_kubernetes_pod_container_port_name": port,
        "__meta_kubernetes_namespace": namespace,
        "__meta_kubernetes_pod_name": pod,
    }


def config(ports: dict[str, int]) -> dict[str, Any]:
    """Return the shipped scrape jobs with their pods listed by hand: Debian's Prometheus has no Kubernetes discovery."""
    jobs = []
    for job in yaml.safe_load((MONITORING / "scrape.yaml").read_text())["scrape_configs"]:
        name = job["job_name"].removeprefix("pagefleet-")
        container = next(rule["regex"] for rule in job["relabel_configs"] if "port_name" in str(rule))
        namespace = "team-a" if name.startswith("engine") else "pagefleet-system"
        pod_labels = found(job["job_name"], container, namespace, f"{name}-0")
        if name.startswith("engine"):
            label = "prefill_of" if name == "engine-prefill" else "service"
            pod_labels |= {f"__meta_kubernetes_pod_label_pagefleet_io_{label}": "chat"}
            pod_labels |= {"__meta_kubernetes_pod_label_pagefleet_io_revision": "new"}
        job.pop("kubernetes_sd_configs")
        targets = [{"targets": [f"127.0.0.1:{ports[name]}"], "labels": pod_labels}] if name in ports else []
        jobs.append({**job, "scrape_interval": "1s", "static_configs": targets})
    return {
        "global": {"evaluation_interval": "1s"},
        "rule_files": [str(MONITORING / "rules.yaml")],
        "scrape_configs": jobs,
    }


def labels(sample: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, value in sample["metric"].items() if name != "__name__"}


async def every_panel(asked: Asked, revision: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the values of every panel for `revision` of team-a/chat, by dashboard and panel."""
    chosen = {"$namespace": "team-a", "$service": "chat", "$revision": revision, "$__rate_interval": "5m"}
    shown: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for board in DASHBOARDS:
        for panel in board.panels:
            for expr, _ in panel.queries:
                for name, value in chosen.items():
                    expr = expr.replace(name, value)
                shown.setdefault((board.name, panel.title), []).extend(await asked(expr))
    return shown


async def test_prometheus_keeps_the_labels_and_answers_every_panel(tmp_path: Path) -> None:
    async with AsyncExitStack() as open_:
        ports = {name: await open_.enter_async_context(served(text)) for name, text in texts().items()}
        asked = await open_.enter_async_context(prometheus(tmp_path, config(ports)))

        async def evaluated() -> bool:
            """Return whether the rules have enough samples for these two alerts to be pending."""
            pending = {alert["metric"]["alertname"] for alert in await asked("ALERTS")}
            return {"PagefleetFreeKVPagesLow", "PagefleetRequestsRefused"} <= pending

        await until(evaluated, timeout=60, what="alerts are pending")
        for query in (
            "revision:pagefleet_gateway_refused:ratio_rate5m",
            "revision:pagefleet_kv_pages_free:ratio",
            "max by (namespace, service, revision) (pagefleet_rollout)",
        ):
            (one,) = await asked(query)
            assert labels(one) == {"namespace": "team-a", "service": "chat", "revision": "new"}
        (pages,) = await asked("revision:pagefleet_kv_pages_free:ratio")
        assert float(pages["value"][1]) == 0.09
        assert len(await asked("pagefleet_guard_seconds")) == 2
        assert await asked("service:pagefleet_gateway_shed:ratio_rate5m")
        await every_panel(asked, ".*")


async def test_a_tenant_s_pod_that_poses_as_a_gateway_tells_nothing_about_another_namespace(tmp_path: Path) -> None:
    """Forged failures of another tenant's canary would make the alert that rolls it back."""
    gateways = {"pagefleet-system": gateway_metrics(), "team-b": gateway_metrics()}
    for metrics, requests in zip(gateways.values(), (9, 10_000), strict=True):
        metrics._requests.labels("team-a", "chat", "new", "500").inc(requests)
    async with AsyncExitStack() as open_:
        ports = {name: await open_.enter_async_context(served(one.text)) for name, one in gateways.items()}
        shipped = config({})
        for job in yaml.safe_load((MONITORING / "scrape.yaml").read_text())["scrape_configs"]:
            (discovery,) = job["kubernetes_sd_configs"]
            own = next(one for one in shipped["scrape_configs"] if one["job_name"] == job["job_name"])
            own["static_configs"] = [
                {"targets": [f"127.0.0.1:{port}"], "labels": found("pagefleet-gateway", "internal", namespace, "g-0")}
                for namespace, port in ports.items()
                if namespace in discovery.get("namespaces", {}).get("names", ports)
            ]
        asked = await open_.enter_async_context(prometheus(tmp_path, shipped))

        async def scraped() -> bool:
            return {float(one["value"][1]) for one in await asked(REQUESTS)} == {9, 10_000}

        await until(scraped, timeout=60, what="both gateways are scraped")
        told = {labels(one)["namespace"]: float(one["value"][1]) for one in await asked(REQUESTS)}
        assert told == {"team-a": 9, "team-b": 10_000}


@pytest.mark.parametrize(
    ("runtime", "saturation", "free", "untold"),
    [
        ("vllm", 1.5, 1 - 0.007352941176470562, set()),
        ("sglang", 2826 / 162, 0.72, set()),
        ("tgi", 7 / 12, None, {"Pages held by requests", "Preemptions", "Time to first token", "Between tokens", "First tokens, by time"}),
    ],
)  # fmt: skip
async def test_other_engines_fill_the_rules_and_panels_of_what_they_tell(
    runtime: str, saturation: float, free: float | None, untold: set[str], tmp_path: Path
) -> None:
    page = (DATA / f"metrics-{runtime}.txt").read_bytes()
    async with AsyncExitStack() as open_:
        ports = {name: await open_.enter_async_context(served(lambda: page)) for name in ("engine", "engine-prefill")}
        asked = await open_.enter_async_context(prometheus(tmp_path, config(ports)))

        async def evaluated() -> bool:
            return bool(await asked("revision:pagefleet_request_queue_time_seconds:p95_5m"))

        await until(evaluated, timeout=60, what="the rules have seen the page twice")
        (queue,) = await asked("revision:pagefleet_queue:saturation")
        assert labels(queue) == {"namespace": "team-a", "service": "chat", "revision": "new"}
        assert float(queue["value"][1]) == pytest.approx(saturation)
        pages = [float(one["value"][1]) for one in await asked("revision:pagefleet_kv_pages_free:ratio")]
        assert pages == ([pytest.approx(free)] if free is not None else [])
        (prompts,) = await asked("revision:pagefleet_prefill_waiting:mean")
        assert labels(prompts) == {"namespace": "team-a", "service": "chat", "revision": "new"}
        assert [float(prompts["value"][1])] == [
            float(one["value"][1]) for one in await asked(level(WAITING, '{prefill_of="chat"}'))
        ]
        shown = await every_panel(asked, "new")
        assert {
            title for board, title in shown if board == "engine" and not shown[board, title]
        } == OURS_ONLY | EXPORTERS | untold
