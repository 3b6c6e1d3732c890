"""A real Prometheus and a real Alertmanager (Debian's packages) beside the fleet, for as long as a scene needs them."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import yaml

from pagefleet_local.assets import debian
from pagefleet_local.demo.narration import Narrator
from pagefleet_local.fleet.install import Fleet
from pagefleet_local.fleet.kubectl import until

PROMETHEUS, ALERTMANAGER = "127.0.0.1:19090", "127.0.0.1:19093"

RULE = {
    "alert": "CanaryRefusesRequests",
    "expr": (
        'sum by (namespace, service, revision) (rate(pagefleet_gateway_requests_total{code=~"4.."}[15s]))'
        " / sum by (namespace, service, revision) (rate(pagefleet_gateway_requests_total[15s])) > 0.2"
    ),
    "labels": {"severity": "page"},
    "annotations": {"summary": "revision {{ $labels.revision }} refuses {{ $value | humanizePercentage }}"},
}


def prometheus_config(kubeconfig: Path) -> dict[str, Any]:
    """Scrape every engine pod and every gateway pod, found through the API server."""
    pods = {"role": "pod", "kubeconfig_file": str(kubeconfig)}
    return {
        "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
        "rule_files": ["rules.yaml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [ALERTMANAGER]}]}]},
        "scrape_configs": [
            {
                "job_name": "pagefleet-engine",
                "kubernetes_sd_configs": [pods],
                "relabel_configs": [
                    _keep("__meta_kubernetes_pod_label_app_kubernetes_io_name", "pagefleet-engine"),
                    _keep("__meta_kubernetes_pod_container_port_name", "http"),
                    _copy("__meta_kubernetes_namespace", "namespace"),
                    _copy("__meta_kubernetes_pod_label_pagefleet_io_service", "service"),
                    _copy("__meta_kubernetes_pod_label_pagefleet_io_revision", "revision"),
                    _copy("__meta_kubernetes_pod_name", "pod"),
                ],
            },
            {
                "job_name": "pagefleet-gateway",
                "honor_labels": True,
                "kubernetes_sd_configs": [pods],
                "relabel_configs": [
                    _keep("__meta_kubernetes_pod_label_app_kubernetes_io_name", "pagefleet-gateway"),
                    _keep("__meta_kubernetes_pod_container_port_name", "internal"),
                    _copy("__meta_kubernetes_pod_name", "pod"),
                ],
            },
        ],
    }


def alertmanager_config(operator: str, token_file: Path) -> dict[str, Any]:
    receiver = {
        "name": "pagefleet",
        "webhook_configs": [
            {
                "url": f"{operator}/alerts",
                "send_resolved": True,
                "http_config": {"authorization": {"credentials_file": str(token_file)}},
            }
        ],
    }
    route = {
        "receiver": "pagefleet",
        "group_by": ["namespace", "service", "revision"],
        "group_wait": "1s",
        "group_interval": "5s",
    }
    return {"route": route, "receivers": [receiver]}


class Monitoring:
    """`async with`: both programs run with a temporary directory of their own, and end with the block."""

    def __init__(self, fleet: Fleet, narrator: Narrator) -> None:
        self._fleet, self._narrator = fleet, narrator
        self._directory = Path()
        self._processes: list[asyncio.subprocess.Process] = []

    async def __aenter__(self) -> Monitoring:
        self._directory = home = Path(tempfile.mkdtemp(prefix="pagefleet-monitoring-"))
        (home / "token").write_text(self._fleet.token)
        (home / "token").chmod(0o600)
        groups = {"groups": [{"name": "pagefleet-demo", "rules": [RULE]}]}
        for name, document in {
            "prometheus.yaml": prometheus_config(self._fleet.kubectl.kubeconfig),
            "rules.yaml": groups,
            "alertmanager.yaml": alertmanager_config(self._fleet.operator, home / "token"),
        }.items():
            (home / name).write_text(yaml.safe_dump(document, sort_keys=False))
        await self._start(
            debian.tool("prometheus-alertmanager"),
            "--config.file=alertmanager.yaml",
            f"--web.listen-address={ALERTMANAGER}",
            "--cluster.listen-address=",
            "--storage.path=alertmanager",
        )
        await self._start(
            debian.tool("prometheus"),
            "--config.file=prometheus.yaml",
            f"--web.listen-address={PROMETHEUS}",
            "--storage.tsdb.path=prometheus",
        )
        self._narrator.say("Prometheus and Alertmanager are up; the rule:")
        self._narrator.yaml(yaml.safe_dump(RULE, sort_keys=False, width=200))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def scraping(self) -> None:
        """Wait until engines and gateway are scraped without an error."""

        async def healthy() -> bool:
            try:
                targets = (await self._get(PROMETHEUS, "/api/v1/targets"))["data"]["activeTargets"]
            except aiohttp.ClientError:
                return False
            up = {target["labels"]["job"] for target in targets if target["health"] == "up"}
            return {"pagefleet-engine", "pagefleet-gateway"} <= up

        await until(healthy, timeout=60, what="Prometheus scrapes the engines and the gateway")
        self._narrator.check(True, "Prometheus scrapes the engines and the gateway")

    async def alerts(self) -> list[tuple[str, str, str]]:
        """What Alertmanager holds: (alert, revision, state)."""
        found = await self._get(ALERTMANAGER, "/api/v2/alerts")
        return [
            (alert["labels"]["alertname"], alert["labels"].get("revision", ""), alert["status"]["state"])
            for alert in found
        ]

    async def _start(self, binary: Path, *flags: str) -> None:
        with (self._directory / f"{binary.name}.log").open("wb") as log:
            self._processes.append(
                await asyncio.create_subprocess_exec(str(binary), *flags, cwd=self._directory, stdout=log, stderr=log)
            )

    async def _get(self, address: str, path: str) -> Any:
        async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}") as response:
            return await response.json()


def _keep(source: str, value: str) -> dict[str, Any]:
    return {"source_labels": [source], "regex": value, "action": "keep"}


def _copy(source: str, target: str) -> dict[str, Any]:
    return {"source_labels": [source], "target_label": target}
