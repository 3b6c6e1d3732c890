"""`pagefleet-operator`: wires the watches, the queue and the web server."""

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
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp

from pagefleet_contract.addresses import EVERY, EVERY_IPV4
from pagefleet_contract.names import KIND, OPERATOR, OPERATOR_PORT, SYSTEM_NAMESPACE
from pagefleet_operator import collector
from pagefleet_operator.alerts.intake import ConflictError, Intake
from pagefleet_operator.controller import CONFLICT, Queue, Reconciler
from pagefleet_operator.domain.spec import policy
from pagefleet_operator.kube import paths
from pagefleet_operator.kube.apply import Applier
from pagefleet_operator.kube.client import Api, ApiError, Document
from pagefleet_operator.kube.leader_election import Leadership
from pagefleet_operator.kube.lists import Lists
from pagefleet_operator.kube.records.retention import Retention
from pagefleet_operator.kube.records.writing import RecordWriter
from pagefleet_operator.kube.spares import SpareOrders
from pagefleet_operator.kube.store import ObjectKey, Store
from pagefleet_operator.kube.versions import Versions
from pagefleet_operator.kube.watching import Watching
from pagefleet_operator.metrics.engine_readings import EngineReadings
from pagefleet_operator.metrics.engine_windows import EngineWindows
from pagefleet_operator.metrics.fetching import measuring_session
from pagefleet_operator.metrics.gateway_windows import GatewayWindows
from pagefleet_operator.metrics.prometheus_client import Prometheus
from pagefleet_operator.metrics.prometheus_windows import PrometheusWindows
from pagefleet_operator.metrics.promql_gates import PrometheusGates
from pagefleet_operator.metrics.wake_ups import Wakes
from pagefleet_operator.observe import Gatherer, Sources
from pagefleet_operator.web import secure
from pagefleet_operator.web.own_metrics import Metrics
from pagefleet_operator.web.server import Server
from pagefleet_operator.web.status_page import StatusPage

TOKEN_FILE = "/var/run/secrets/pagefleet/alert-token/token"  # noqa: S105 - a path
PAGE_TOKEN_FILE = "/var/run/secrets/pagefleet/status-page-token/token"  # noqa: S105 - a path
TLS_FOLDER = "/var/run/secrets/pagefleet/tls"
CHILD_DELAY = 0.1
# An edit goes before every decision that only time has made due: where many pods answer slowly, those may be a minute late.
EDIT_DELAY = -3600.0


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


def enqueue(queue: Queue, store: Store, key: ObjectKey) -> None:
    """Queue the service that an object is, or belongs to."""
    kind, namespace, name = key
    if kind == KIND:
        queue.add((namespace, name), EDIT_DELAY if store.is_edited(namespace, name) else 0.0)
    elif owner := store.owner(key):
        queue.add((namespace, owner), delay=CHILD_DELAY)


def _on_list(queue: Queue, store: Store, page: StatusPage, key: ObjectKey) -> None:
    """Handle a difference that a whole list showed and no watch had reported."""
    enqueue(queue, store, key)
    if key[0] == KIND:  # call_soon: an object that a list lacks leaves the store only after this call
        asyncio.get_running_loop().call_soon(page.changed, (key[1], key[2]))


def _on_event(store: Store, queue: Queue, page: StatusPage, kind: str, event: str | None, document: Document) -> None:
    metadata = document["metadata"]
    key = (kind, metadata.get("namespace", ""), metadata["name"])
    if event == "DELETED":  # its owner is known only while it is in the store
        enqueue(queue, store, key)
    store.upsert(kind, document, deleted=event == "DELETED")
    enqueue(queue, store, key)
    if kind == KIND:
        page.changed((key[1], key[2]))


async def operate(
    port: int, kubeconfig: str | None, token_file: Path, system: str, lease: str, namespaces: Collection[str]
) -> None:
    """Run until SIGTERM, or until the Lease `lease` is lost ("" means that there is only one operator).

    Without `namespaces` the operator handles the services of the whole cluster. `system` is its own namespace.
    """
    metrics, stop, ready = Metrics(), asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Api(kubeconfig) as api, measuring_session() as session:
        store, versions = Store(), Versions(api)
        gatherer = Gatherer(api, versions, store, _sources(session), system)
        leadership = Leadership(api, system, lease, f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}")
        metrics.leader.set_function(lambda: float(leadership.leads.is_set()))
        wakes = Wakes(session, gatherer.gateways, lambda key: queue.add(key))
        page = StatusPage(store, _page_token(), leadership.leads.is_set)
        leading = api.fenced(leadership.check)
        records = RecordWriter(leading, store)
        applier = Applier(leading, versions, store, gatherer.routes, records.write)
        spares = SpareOrders(leading, store, session, leadership.check, lambda key: queue.add(key))
        reconciler = Reconciler(gatherer, applier, metrics, wakes.note, page.decided, spares.carry_out)
        queue = Queue(reconciler.reconcile, metrics)
        intake = Intake(
            token_file,
            gatherer.fresh,
            lambda document: _store(api, store, document),
            lambda *key: queue.add(key, first=True),
            lambda outcome, number: metrics.alerts.labels(outcome).inc(number),
        )
        server = Server(metrics, intake.handle, ready.is_set, page)
        runner = await server.start(port)
        lists = Lists(api, versions, store, namespaces, lambda key: _on_list(queue, store, page, key))

        def on_event(kind: str, event: str | None, document: Document) -> None:
            _on_event(store, queue, page, kind, event, document)
            if event is None:  # kopf has listed again; it does not report objects that vanished meanwhile
                lists.soon()

        watch = Watching(
            on_event,
            namespaces,
            kubeconfig,
            ready,
            metrics.watch_restarts.inc,
        )
        watching = asyncio.create_task(watch.run(stop))
        working = (
            lists.run(),
            queue.run(lists.synced, leadership.leads),
            server.measure_lag(),
            leadership.run(),
            wakes.run(),
            Retention(leading, store, leadership.leads.is_set).run(lists.synced),
            secure.serve(*_tls(), partial(server.listen, runner)),
        )
        others = [asyncio.create_task(work) for work in working]
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


def _page_token() -> Path:
    """The path of the status page's token. The page is off while there is no such file."""
    return Path(os.environ.get("PAGEFLEET_STATUS_PAGE_TOKEN_FILE", PAGE_TOKEN_FILE))


def _tls() -> tuple[Path, int]:
    """Where the certificate is mounted, and the port for HTTPS."""
    folder = Path(os.environ.get("PAGEFLEET_OPERATOR_TLS", TLS_FOLDER))
    return folder, int(os.environ.get("PAGEFLEET_OPERATOR_TLS_PORT", "8443"))


def _sources(session: aiohttp.ClientSession) -> Sources:
    token = os.environ.get("PAGEFLEET_PROMETHEUS_TOKEN_FILE")
    url = os.environ.get("PAGEFLEET_PROMETHEUS_URL", "")
    prometheus = Prometheus(session, url, Path(token) if token else None)
    return Sources(
        engines=EngineReadings(session),
        windows=GatewayWindows(session),
        engine_windows=EngineWindows(session),
        prometheus_windows=PrometheusWindows(prometheus),
        gates=PrometheusGates(prometheus),
        image=os.environ.get("PAGEFLEET_OPERATOR_IMAGE", f"docker.io/pagefleet/operator:{version('pagefleet')}"),
        # Pods have addresses of the family that the operator's own pod has first.
        engine_address=EVERY if ":" in os.environ.get("POD_IP", "") else EVERY_IPV4,
        policy=policy.from_environment(os.environ),
    )


async def _store(api: Api, store: Store, document: Document) -> None:
    """Write a status, and put it into the store at once: the watch may report it only after the next decision."""
    metadata = document["metadata"]
    path = paths.inference_service(metadata["namespace"], metadata["name"]) + "/status"
    try:
        store.upsert(KIND, await api.replace(path, document))
    except ApiError as error:
        if error.status == CONFLICT:
            raise ConflictError(error.message) from error
        raise


def run() -> None:
    # kopf asks the system for the user's name, and a container's numeric user has none.
    os.environ.setdefault("USER", OPERATOR)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=os.environ.get("PAGEFLEET_LOG_LEVEL", "INFO"), handlers=[handler], force=True)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # kopf warns that it cannot handle the process' signals. It must not: the operator does.
    logging.getLogger("kopf._core.reactor.running").addFilter(lambda line: "OS signals" not in str(line.msg))
    collector.search_less()
    asyncio.run(
        operate(
            port=int(os.environ.get("PAGEFLEET_OPERATOR_PORT", str(OPERATOR_PORT))),
            kubeconfig=os.environ.get("KUBECONFIG") or None,
            token_file=Path(os.environ.get("PAGEFLEET_ALERT_TOKEN_FILE", TOKEN_FILE)),
            system=os.environ.get("POD_NAMESPACE", SYSTEM_NAMESPACE),
            lease=os.environ.get("PAGEFLEET_LEASE", ""),
            namespaces=os.environ.get("PAGEFLEET_NAMESPACES", "").replace(",", " ").split(),
        )
    )
