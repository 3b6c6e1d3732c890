"""`pagefleet-operator`: wires kopf, the queue and the web server. kopf only watches: it writes to no object."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Collection
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import kopf

from pagefleet_operator.alerts.intake import ConflictError, Intake
from pagefleet_operator.cluster import paths
from pagefleet_operator.cluster.api import Api, ApiError, Document
from pagefleet_operator.cluster.apply import Applier
from pagefleet_operator.cluster.leadership import Leadership
from pagefleet_operator.domain.build.names import GROUP, PLURAL, SERVICE_LABEL, VERSION
from pagefleet_operator.gather import Gatherer, Sources
from pagefleet_operator.reconcile import CONFLICT, Queue, Reconciler
from pagefleet_operator.signals.engine import EngineSignals
from pagefleet_operator.signals.histograms import EngineWindows
from pagefleet_operator.signals.prometheus import PrometheusGates
from pagefleet_operator.signals.windows import GatewayWindows
from pagefleet_operator.web.metrics import Metrics
from pagefleet_operator.web.secure import Secure
from pagefleet_operator.web.server import Server

MANAGED = {"app.kubernetes.io/managed-by": "pagefleet"}
TOKEN_FILE = "/var/run/secrets/pagefleet/alert-token/token"  # noqa: S105 - a path
TLS_FOLDER = "/var/run/secrets/pagefleet/tls"
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


async def operate(
    port: int, kubeconfig: str | None, token_file: Path, system: str, lease: str, namespaces: Collection[str]
) -> None:
    """Run until SIGTERM, or until the Lease `lease` ("": none) is lost. Without `namespaces` the services of the whole
    cluster are looked after."""
    metrics, stop, ready = Metrics(), asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Api(kubeconfig) as api, aiohttp.ClientSession() as session:
        gatherer = Gatherer(api, _sources(session), system)
        leadership = Leadership(api, system, lease, f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}")
        metrics.leader.set_function(lambda: float(leadership.leads.is_set()))
        queue = Queue(Reconciler(gatherer, Applier(api, leadership.check), metrics).reconcile, metrics)
        intake = Intake(
            token_file, gatherer.service, lambda document: _store(api, document), lambda *key: queue.add(key)
        )
        server = Server(metrics, intake.handle, ready.is_set)
        secure = _secure()
        runner = await server.start(port, secure)
        registry = kopf.OperatorRegistry()
        watches(registry, queue)
        settings = kopf.OperatorSettings()
        settings.scanning.disabled = True
        watching = asyncio.create_task(
            kopf.operator(
                registry=registry,
                settings=settings,
                standalone=True,
                clusterwide=not namespaces,
                namespaces=tuple(namespaces),
                ready_flag=ready,
                stop_flag=stop,
            )
        )
        working = (queue.run(leadership.leads), server.measure_lag(), leadership.run())
        others = [asyncio.create_task(work) for work in working]
        if secure is not None:
            others.append(asyncio.create_task(secure.keep()))
        try:
            done, _ = await asyncio.wait((watching, *others), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (watching, *others):
                task.cancel()
            await asyncio.gather(watching, *others, return_exceptions=True)
            await leadership.give_up()
            await runner.cleanup()


def _secure() -> Secure | None:
    """HTTPS beside HTTP, where a certificate is mounted."""
    folder = Path(os.environ.get("PAGEFLEET_OPERATOR_TLS", TLS_FOLDER))
    if not (folder / "tls.crt").exists():
        return None
    return Secure(folder, int(os.environ.get("PAGEFLEET_OPERATOR_TLS_PORT", "8443")))


def _sources(session: aiohttp.ClientSession) -> Sources:
    token = os.environ.get("PAGEFLEET_PROMETHEUS_TOKEN_FILE")
    gates = PrometheusGates(session, os.environ.get("PAGEFLEET_PROMETHEUS_URL", ""), Path(token) if token else None)
    image = os.environ.get("PAGEFLEET_OPERATOR_IMAGE", f"docker.io/pagefleet/operator:{version('pagefleet')}")
    return Sources(EngineSignals(session), GatewayWindows(session), EngineWindows(session), gates, image)


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
            lease=os.environ.get("PAGEFLEET_LEASE", ""),
            namespaces=os.environ.get("PAGEFLEET_NAMESPACES", "").replace(",", " ").split(),
        )
    )
