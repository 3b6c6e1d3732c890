"""Protects the way from the pieces' own /metrics to the dashboards: a real Prometheus with the shipped rules scrapes what
engine, gateway and operator write, keeps the labels that they tell, and every panel can be asked of it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from piece_metrics import gateway_metrics

from pagefleet_engine.api.metrics import Metrics as EngineMetrics
from pagefleet_engine.core.requests import EngineConfig, EngineStats
from pagefleet_local.assets import debian
from pagefleet_local.fleet.kubectl import until
from pagefleet_observability.dashboards import DASHBOARDS
from pagefleet_operator.domain.plan import Plan
from pagefleet_operator.domain.status import Phase, RevisionRecord, RolloutRecord, SignalRecord, Status, Weight
from pagefleet_operator.web.metrics import Metrics as OperatorMetrics

MONITORING = Path(__file__).resolve().parents[2] / "manifests/monitoring"
Text = Callable[[], bytes]


def texts() -> dict[str, Text]:
    """What each piece says of service team-a/chat, a little more each time it is asked."""
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
        gateway.refused("team-a", "chat", 429)
        return gateway.text()

    def engine_text() -> bytes:
        engine.levels(EngineStats(3, 2, 100, 4, 5, 0, 0, 0, 9))
        engine.ttft.observe(0.2)
        return engine.text()

    return {"engine": engine_text, "gateway": gateway_text, "operator": operator.text}


def config(ports: dict[str, int]) -> dict[str, Any]:
    """The shipped scrape jobs, their pods listed by hand: Debian's Prometheus has no Kubernetes discovery."""
    jobs = []
    for job in yaml.safe_load((MONITORING / "scrape.yaml").read_text())["scrape_configs"]:
        name = job["job_name"].removeprefix("pagefleet-")
        container = next(rule["regex"] for rule in job["relabel_configs"] if "port_name" in str(rule))
        found = {
            "__meta_kubernetes_pod_label_app_kubernetes_io_name": job["job_name"],
            "__meta_kubernetes_pod_container_port_name": container,
            "__meta_kubernetes_namespace": "team-a" if name == "engine" else "pagefleet-system",
            "__meta_kubernetes_pod_name": f"{name}-0",
        }
        if name == "engine":
            found |= {"__meta_kubernetes_pod_label_pagefleet_io_service": "chat"}
            found |= {"__meta_kubernetes_pod_label_pagefleet_io_revision": "new"}
        job.pop("kubernetes_sd_configs")
        targets = [{"targets": [f"127.0.0.1:{ports[name]}"], "labels": found}]
        jobs.append({**job, "scrape_interval": "1s", "static_configs": targets})
    return {
        "global": {"evaluation_interval": "1s"},
        "rule_files": [str(MONITORING / "rules.yaml")],
        "scrape_configs": jobs,
    }


async def served(text: Text) -> tuple[web.AppRunner, int]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, runner.addresses[0][1]


async def test_prometheus_keeps_the_labels_and_answers_every_panel(tmp_path: Path) -> None:
    runners = {name: await served(text) for name, text in texts().items()}
    (tmp_path / "prometheus.yaml").write_text(
        yaml.safe_dump(config({name: port for name, (_, port) in runners.items()}))
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    log = (tmp_path / "log").open("wb")
    prometheus = await asyncio.create_subprocess_exec(
        debian.tool("prometheus"), "--config.file=prometheus.yaml", f"--web.listen-address={address}",
        "--storage.tsdb.path=data", cwd=tmp_path, stdout=log, stderr=log,
    )  # fmt: skip

    async with aiohttp.ClientSession() as session:

        async def asked(query: str) -> list[dict[str, Any]]:
            async with session.get(f"http://{address}/api/v1/query", params={"query": query}) as response:
                answer = json.loads(await response.text())
            assert answer["status"] == "success", (query, answer)
            found: list[dict[str, Any]] = answer["data"]["result"]
            return found

        async def evaluated() -> bool:
            """The rules have seen enough for these two to be about to fire."""
            try:
                pending = {alert["metric"]["alertname"] for alert in await asked("ALERTS")}
            except aiohttp.ClientConnectionError:
                return False
            return {"PagefleetFreeKVPagesLow", "PagefleetRequestsRefused"} <= pending

        try:
            await until(evaluated, timeout=60, what="alerts are pending")
            own = {"namespace": "team-a", "service": "chat", "revision": "new"}
            for query in (
                "revision:pagefleet_gateway_refused:ratio_rate5m",
                "revision:pagefleet_kv_pages_free:ratio",
                "max by (namespace, service, revision) (pagefleet_rollout)",
            ):
                (one,) = await asked(query)
                assert {name: value for name, value in one["metric"].items() if name != "__name__"} == own
            (pages,) = await asked("revision:pagefleet_kv_pages_free:ratio")
            assert float(pages["value"][1]) == 0.09
            assert len(await asked("pagefleet_guard_seconds")) == 2
            assert await asked("service:pagefleet_gateway_shed:ratio_rate5m")
            for board in DASHBOARDS:
                for panel in board.panels:
                    for expr, _ in panel.queries:
                        chosen = {
                            "$namespace": "team-a",
                            "$service": "chat",
                            "$revision": ".*",
                            "$__rate_interval": "5m",
                        }
                        for name, value in chosen.items():
                            expr = expr.replace(name, value)
                        await asked(expr)
        finally:
            prometheus.kill()
            await prometheus.wait()
            log.close()
            for runner, _ in runners.values():
                await runner.cleanup()
