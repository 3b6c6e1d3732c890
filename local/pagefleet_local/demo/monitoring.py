"""A real Prometheus and a real Alertmanager beside the fleet, for as long as a scene needs them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import yaml

from pagefleet_contract.names import (
    ENGINE,
    ENGINE_PORT,
    GATEWAY,
    GATEWAY_INTERNAL_PORT,
    NAME_LABEL,
    OPERATOR,
    OPERATOR_PORT,
    REVISION_LABEL,
    SERVICE_LABEL,
)
from pagefleet_local.assets import monitoring
from pagefleet_local.base import paths
from pagefleet_local.base.processes import MARK
from pagefleet_local.demo.narration import Narrator
from pagefleet_local.fleet.access import Access
from pagefleet_local.fleet.install import CHECKOUT, Fleet
from pagefleet_local.fleet.kubectl import Document, until

PROMETHEUS, ALERTMANAGER = "127.0.0.1:19090", "127.0.0.1:19093"
PORTS = {ENGINE: ENGINE_PORT, GATEWAY: GATEWAY_INTERNAL_PORT, OPERATOR: OPERATOR_PORT}
DISCOVERY_SECONDS = 2.0

RULES = CHECKOUT / "manifests/monitoring/rules.yaml"
GROUPS = ("pagefleet-requests", "pagefleet-canaries")  # those that compare a canary with the stable revision
WINDOW = "15s"


def comparing_rules() -> dict[str, Any]:
    """The shipped rules that may roll a canary back, in a hurry: windows of WINDOW, where they are 5 min, and no waiting."""
    groups = [group for group in yaml.safe_load(RULES.read_text())["groups"] if group["name"] in GROUPS]
    for rule in (rule for group in groups for rule in group["rules"]):
        rule["expr"] = rule["expr"].replace("[5m]", f"[{WINDOW}]")
        rule.pop("for", None)
    return {"groups": groups}


def prometheus_config() -> dict[str, Any]:
    """Scrape what targets.json lists. Debian builds Prometheus without its Kubernetes discovery."""
    files = [{"files": ["targets.json"]}]
    return {
        "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
        "rule_files": ["rules.yaml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [ALERTMANAGER]}]}]},
        "scrape_configs": [{"job_name": "pagefleet", "honor_labels": True, "file_sd_configs": files}],
    }


def targets(pods: list[Document], access: Access) -> list[dict[str, Any]]:
    """Pods of engine, gateway and operator as Prometheus targets, labelled as its Kubernetes discovery would label them."""
    targets = []
    for pod in pods:
        labels, address = pod["metadata"].get("labels") or {}, (pod.get("status") or {}).get("podIP")
        port = PORTS.get(labels.get(NAME_LABEL, ""))
        if port is None or not address:
            continue
        own = {
            "job": labels[NAME_LABEL],
            "namespace": pod["metadata"]["namespace"],
            "pod": pod["metadata"]["name"],
            "service": labels.get(SERVICE_LABEL, ""),
            "revision": labels.get(REVISION_LABEL, ""),
        }
        host, path = access.metrics(pod, port)
        # Behind a proxy all pods have one host: the instance label distinguishes them.
        own |= {"__metrics_path__": path, "instance": f"{own['pod']}:{port}"}
        targets.append({"targets": [host], "labels": own})
    return targets


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
        self._discovery: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Monitoring:
        self._directory = Path(tempfile.mkdtemp(prefix="pagefleet-monitoring-"))
        try:
            await self._begin(self._directory)
        except BaseException:  # nobody calls __aexit__ then
            await self._end()
            raise
        return self

    async def _begin(self, home: Path) -> None:
        (home / "token").write_text(self._fleet.token)
        (home / "token").chmod(0o600)
        rules = comparing_rules()
        for name, document in {
            "prometheus.yaml": prometheus_config(),
            "rules.yaml": rules,
            "alertmanager.yaml": alertmanager_config(self._fleet.operator, home / "token"),
        }.items():
            (home / name).write_text(yaml.safe_dump(document, sort_keys=False))
        await self._discover()
        self._discovery = asyncio.create_task(self._keep_discovering())
        await self._start(
            *monitoring.alertmanager(),
            "--config.file=alertmanager.yaml",
            f"--web.listen-address={ALERTMANAGER}",
            "--cluster.listen-address=",
            "--storage.path=alertmanager",
        )
        await self._start(
            *monitoring.prometheus(),
            "--config.file=prometheus.yaml",
            f"--web.listen-address={PROMETHEUS}",
            "--storage.tsdb.path=prometheus",
        )
        self._narrator.say(f"Prometheus and Alertmanager are up, with the shipped rules over {WINDOW}; one of them:")
        shown = next(rule for rule in rules["groups"][-1]["rules"] if "alert" in rule)
        self._narrator.yaml(yaml.safe_dump(shown, sort_keys=False, width=200))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        if self._discovery is not None:
            self._discovery.cancel()
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def scraping(self) -> None:
        """Wait until engines, gateway and operator are scraped without an error, and Alertmanager answers."""

        async def healthy() -> bool:
            try:
                active = (await self._get(PROMETHEUS, "/api/v1/targets"))["data"]["activeTargets"]
                await self.alerts()
            except aiohttp.ClientError:
                return False
            up = {target["labels"]["job"] for target in active if target["health"] == "up"}
            return set(PORTS) <= up

        try:
            await until(healthy, timeout=60, what="Prometheus scrapes engines, gateway and operator")
        except TimeoutError:
            for log in sorted(self._directory.glob("*.log")):
                self._narrator.output(log.read_text()[-2000:])
            raise
        self._narrator.check(True, "Prometheus scrapes engines, gateway and operator")

    async def alerts(self) -> list[tuple[str, str, str]]:
        """The active alerts of Alertmanager: (alert, revision, state)."""
        active = await self._get(ALERTMANAGER, "/api/v2/alerts")
        return [
            (alert["labels"]["alertname"], alert["labels"].get("revision", ""), alert["status"]["state"])
            for alert in active
        ]

    async def _keep_discovering(self) -> None:
        while True:
            await asyncio.sleep(DISCOVERY_SECONDS)
            await self._discover()

    async def _discover(self) -> None:
        listed = await self._fleet.kubectl.run("get", "pods", "-A", "-o", "json")
        partial = self._directory / "targets.partial"
        partial.write_text(json.dumps(targets(json.loads(listed.out)["items"], self._fleet.access)))
        partial.rename(self._directory / "targets.json")

    async def _start(self, binary: str, *flags: str) -> None:
        # `make down` finds them by the mark when the demo itself was killed; a terminal that is closed does not end them.
        environment = {**os.environ, MARK: str(paths.layout().state)}
        with (self._directory / f"{len(self._processes)}-{Path(binary).name}.log").open("wb") as log:
            self._processes.append(
                await asyncio.create_subprocess_exec(
                    binary, *flags, cwd=self._directory, env=environment, stdout=log, stderr=log
                )
            )

    async def _get(self, address: str, path: str) -> Any:
        async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}") as response:
            return await response.json()
