"""`pagefleet-operator`: wires kopf, the queue and the web server. kopf only watches: it writes to no object."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import kopf

from pagefleet_operator.alerts.intake import ConflictError, Intake
from pagefleet_operator.cluster import paths
from pagefleet_operator.cluster.api import Api, ApiError, Document
from pagefleet_operator.cluster.apply import Applier
from pagefleet_operator.domain.build.names import GROUP, PLURAL, SERVICE_LABEL, VERSION
from pagefleet_operator.gather import Gatherer
from pagefleet_operator.reconcile import CONFLICT, Queue, Reconciler
from pagefleet_operator.signals.engine import EngineSignals
from pagefleet_operator.signals.wakes import Wakes
from pagefleet_operator.signals.windows import GatewayWindows
from pagefleet_operator.web.metrics import Metrics
from pagefleet_operator.web.server import Server

MANAGED = {"app.kubernetes.io/managed-by": "pagefleet"}
TOKEN_FILE = "/var/run/secrets/pagefleet/alert-token/token"  # noqa: S105 - a path
WATCH_SECONDS = 60


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def watches(registry: kopf.OperatorRegistry, queue: Queue) -> None:
    """kopf's handlers: each only says which service is due."""

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> Any:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.startup(registry=registry)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.watching.server_timeout = WATCH_SECONDS
        settings.watching.client_timeout = WATCH_SECONDS + 10
        settings.networking.request_timeout = 30

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    def service(namespace: str | None, name: str | None, **_: Any) -> None:
        queue.add((str(namespace), str(name)))

    @kopf.on.event("apps", "v1", "deployments", labels=MANAGED, registry=registry)
    @kopf.on.event("", "v1", "pods", labels=MANAGED, registry=registry)
    def child(namespace: str | None, labels: Any, **_: Any) -> None:
        if owner := labels.get(SERVICE_LABEL):
            queue.add((str(namespace), str(owner)), delay=0.1)


async def operate(port: int, kubeconfig: str | None, token_file: Path, system: str) -> None:
    """Run until SIGTERM."""
    metrics, stop, ready = Metrics(), asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Api(kubeconfig) as api, aiohttp.ClientSession() as session:
        gatherer = Gatherer(api, EngineSignals(session), GatewayWindows(session), system)
        wakes = Wakes(session, gatherer.gateways, lambda key: queue.add(key))
        queue = Queue(Reconciler(gatherer, Applier(api), metrics, wakes.note).reconcile, metrics)
        intake = Intake(
            token_file, gatherer.service, lambda document: _store(api, document), lambda *key: queue.add(key)
        )
        server = Server(metrics, intake.handle, ready.is_set)
        runner = await server.start(port)
        registry = kopf.OperatorRegistry()
        watches(registry, queue)
        settings = kopf.OperatorSettings()
        settings.scanning.disabled = True
        watching = asyncio.create_task(
            kopf.operator(
                registry=registry,
                settings=settings,
                standalone=True,
                clusterwide=True,
                ready_flag=ready,
                stop_flag=stop,
            )
        )
        working = (queue.run(), server.measure_lag(), wakes.run())
        others = [asyncio.create_task(work) for work in working]
        try:
            done, _ = await asyncio.wait((watching, *others), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (watching, *others):
                task.cancel()
            await asyncio.gather(watching, *others, return_exceptions=True)
            await runner.cleanup()


async def _store(api: Api, document: Document) -> None:
    metadata = document["metadata"]
    try:
        await api.replace(paths.inference_service(metadata["namespace"], metadata["name"]) + "/status", document)
    except ApiError as error:
        if error.status == CONFLICT:
            raise ConflictError(error.message) from error
        raise


def run() -> None:
    # kopf asks the system who it runs as; a container's numeric user has no name.
    os.environ.setdefault("USER", "pagefleet-operator")
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=os.environ.get("PAGEFLEET_LOG_LEVEL", "INFO"), handlers=[handler], force=True)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    asyncio.run(
        operate(
            port=int(os.environ.get("PAGEFLEET_OPERATOR_PORT", "8080")),
            kubeconfig=os.environ.get("KUBECONFIG") or None,
            token_file=Path(os.environ.get("PAGEFLEET_ALERT_TOKEN_FILE", TOKEN_FILE)),
            system=os.environ.get("POD_NAMESPACE", "pagefleet-system"),
        )
    )
