"""Protects the operator's loops from an API server that is there and answers badly: overloaded, behind a proxy with pages of its own, or
with what is no object. What fails is tried again; it ends no operator, and
keeps no decision from being written."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import generate_latest
from support.loopback import own_address
from support.virtual.cluster import Cluster, started

from pagefleet_contract.names import GATEWAY_INTERNAL_PORT, REVISION_LABEL, SERVICE_LABEL
from pagefleet_operator.controller import Reconciler
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.plan import Event, SpareOrder
from pagefleet_operator.kube.apply import Applier
from pagefleet_operator.kube.client import Api, ApiError, Document
from pagefleet_operator.kube.gateway_api import RouteObjects
from pagefleet_operator.kube.spares import SpareOrders
from pagefleet_operator.kube.store import ServiceKey, Store
from pagefleet_operator.kube.versions import Versions
from pagefleet_operator.metrics.engine_readings import EngineReadings
from pagefleet_operator.metrics.engine_windows import EngineWindows
from pagefleet_operator.metrics.fetching import measuring_session
from pagefleet_operator.metrics.gateway_windows import GatewayWindows
from pagefleet_operator.metrics.prometheus_client import Prometheus
from pagefleet_operator.metrics.prometheus_windows import PrometheusWindows
from pagefleet_operator.metrics.promql_gates import PrometheusGates
from pagefleet_operator.metrics.wake_ups import Wakes
from pagefleet_operator.observe import Gatherer, Sources
from pagefleet_operator.web.own_metrics import Metrics

GATEWAY = own_address(0)
PATH = "/api/v1/pods"
PAGES: dict[str, tuple[int, bytes]] = {
    "a proxy's page in Latin-1": (503, "<html>Dienst nicht verf\u00fcgbar</html>".encode("latin-1")),
    "a list": (502, b'["bad gateway"]'),
    "a text": (429, b'"slow down"'),
    "no text at all": (200, b"\xff\xfe\xfd"),
}


@asynccontextmanager
async def serving(application: web.Application, host: str, port: int) -> AsyncIterator[int]:
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def kubeconfig(folder: Path, port: int) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "one", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "one", "user": {"token": "t"}}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
        "current-context": "one",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


def answering(status: int, body: bytes) -> web.Application:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body, content_type="application/json")

    application = web.Application()
    application.router.add_get(PATH, answer)
    return application


@pytest.mark.parametrize("page", PAGES)
async def test_an_answer_that_is_no_object_is_an_error_like_any_other(page: str, tmp_path: Path) -> None:
    """What the loops do not expect ends the operator: a UnicodeDecodeError, or an AttributeError of a list."""
    status, body = PAGES[page]
    async with (
        serving(answering(status, body), "127.0.0.1", 0) as port,
        Api(str(kubeconfig(tmp_path, port))) as api,
    ):
        with pytest.raises(ApiError) as raised:
            await api.get(PATH)
        assert raised.value.status == (status if status >= 300 else 502)


async def test_credentials_that_cannot_be_read_again_leave_the_server_s_answer(tmp_path: Path) -> None:
    """A token's file that is being replaced, or an exec plugin that fails once, ended the operator."""
    async with serving(answering(401, b"{}"), "127.0.0.1", 0) as port:
        path = kubeconfig(tmp_path, port)
        async with Api(str(path)) as api:
            path.unlink()
            with pytest.raises(ApiError, match="401"):
                await api.get(PATH)


async def test_gateways_that_the_api_server_does_not_list_are_listed_again() -> None:
    """The whole operator ended with a traceback, whenever a service slept and the API server answered 429 or 503."""
    failures = [ApiError(503, "etcdserver: leader changed"), ApiError(429, "too many requests")]
    woken, application = asyncio.Queue[ServiceKey](), web.Application()

    async def gateways() -> list[str]:
        if failures:
            raise failures.pop(0)
        return [GATEWAY]

    async def held(_: web.Request) -> web.Response:
        return web.json_response({"held": {"ns/chat": 1}})

    application.router.add_get("/held", held)
    async with serving(application, GATEWAY, GATEWAY_INTERNAL_PORT), measuring_session() as session:
        wakes = Wakes(session, gateways, woken.put_nowait)
        wakes.note(("ns", "chat"), True)
        running = asyncio.create_task(wakes.run())
        first = asyncio.create_task(woken.get())
        await asyncio.wait((running, first), timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert not running.done(), running.exception()
        assert first.result() == ("ns", "chat")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Server(Api):
    """An API server that raises `failing` for writes of the kinds in `broken`, and carries out every other one."""

    def __init__(self, broken: Collection[str], failing: Exception) -> None:
        super().__init__(None)
        self._broken, self._failing = broken, failing
        self.statuses: list[Any] = []
        self.events: list[str] = []
        self.applied: list[str] = []
        self.deleted: list[str] = []

    async def find(self, path: str) -> Document | None:
        return None

    async def get(self, path: str, **query: str) -> Document:
        return {"versions": [{"groupVersion": "policy/v1"}]}

    async def apply(self, path: str, body: Mapping[str, Any], manager: str) -> Document:
        self._write(body["kind"])
        self.applied.append(body["kind"])
        stored = copy.deepcopy(dict(body))
        stored["metadata"] |= {"uid": path, "resourceVersion": "1"}
        return stored

    async def replace(self, path: str, body: Mapping[str, Any]) -> Document:
        self._write("status")
        self.statuses.append(body["status"])
        return dict(body)

    async def create(self, path: str, body: Mapping[str, Any], **query: str) -> Document:
        self._write(body["kind"])
        if not query:  # a dry run stores nothing
            self.events.append(body["message"])
        return dict(body)

    async def merge(self, path: str, body: Mapping[str, Any], manager: str = "") -> Document:
        self._write("Pod")
        return {}

    async def delete(self, path: str, uid: str) -> None:
        self.deleted.append(path)

    def _write(self, kind: str) -> None:
        if kind in self._broken:
            raise self._failing


ROUTE = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "chat", "namespace": "ns"}, "spec": {}}  # fmt: skip


SERVICE: Document = {
    "apiVersion": "pagefleet.io/v1alpha1",
    "kind": "InferenceService",
    "status": {},
    "metadata": {"namespace": "ns", "name": "chat", "uid": "uid", "resourceVersion": "1"},
}


async def unrecorded(_: object) -> list[Exception]:
    return []


def applier_of(api: Api) -> Applier:
    return Applier(api, Versions(api), Store(), RouteObjects(api), unrecorded)


async def applied(api: Server, times: int = 1, **changes: Any) -> list[Exception | None]:
    """Carry a first decision out so often, as for a service of which no object is there. Returns the failures."""
    cluster = started(steps=[{"weight": 50}])
    assert cluster.plan is not None
    plan, applier = replace(cluster.plan, **changes), applier_of(api)
    return [await applier.apply(SERVICE | {"spec": cluster.spec}, plan) for _ in range(times)]


async def test_several_children_that_are_refused_make_one_event_each() -> None:
    """Each took the other's text for a new one: two Events at every try, every 15 s, for as long as a policy refuses them."""
    kinds = ["Service", "PodDisruptionBudget"]
    api = Server(kinds, ApiError(403, "denied by the policy of this cluster"))
    assert None not in await applied(api, times=5, events=())
    assert [sum(f"refuses the {kind} of" in message for message in api.events) for kind in kinds] == [1, 1]


@pytest.mark.parametrize("failing", [TimeoutError(), aiohttp.ServerDisconnectedError()], ids=["slow", "cut"])
@pytest.mark.parametrize("kind", ["Deployment", "Service", "PodDisruptionBudget", "HTTPRoute", "Event", "Pod"])
async def test_a_write_that_nobody_answers_keeps_no_decision_and_no_event_away(kind: str, failing: Exception) -> None:
    """An admission webhook that hangs delays the writes of its kind only, and they time out."""
    api, event = Server([kind], failing), Event("Normal", "RolloutStarted", "it starts")
    failures = await applied(api, events=(event,), routes=(ROUTE,), deletion_costs={"chat-1": 1})
    assert failures == [None if kind in ("Event", "Pod") else failing]
    assert len(api.statuses) == 1 and api.statuses[0]["stable"]
    assert api.events == ([] if kind == "Event" else ["it starts"])
    others = {"Deployment", "Service", "PodDisruptionBudget", "HTTPRoute"} - {kind}
    assert set(api.applied) == (others if kind != "Deployment" else {"HTTPRoute"})


class Observed(Gatherer):
    """Reads a cluster in virtual time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def service(self, namespace: str, name: str) -> Document:
        return SERVICE | {"spec": self._cluster.spec}

    async def observe(self, service: Document) -> Observation:
        return self._cluster.observe()


async def test_a_refused_child_keeps_a_stored_decision_from_nobody_else() -> None:
    """Nobody counted a rollback, no warm spare stood in, and no request woke a service, while a policy refused one object of it."""
    refused = ApiError(403, "denied by the policy of this cluster")
    api, cluster, metrics, told = Server(["PodDisruptionBudget"], refused), started(), Metrics(), list[str]()

    async def order(_: ServiceKey, __: object) -> None:
        told.append("order")

    reconciler = Reconciler(
        Observed(cluster),
        applier_of(api),
        metrics,
        lambda *_: told.append("asleep"),
        lambda *_: told.append("shown"),
        order,
    )
    with pytest.raises(ApiError, match="denied by the policy"):
        await reconciler.reconcile(("ns", "chat"))
    assert len(api.statuses) == 1
    assert told == ["order", "asleep", "shown"]
    assert b"pagefleet_replicas{" in generate_latest(metrics.registry)


async def test_a_decision_that_is_not_stored_is_shown_to_nobody() -> None:
    api = Server(["status"], ApiError(409, "the object has been modified"))
    told = list[object]()

    async def order(*given: object) -> None:
        told.append(given)

    reconciler = Reconciler(
        Observed(started()), applier_of(api), Metrics(), lambda *_: told.append(_), lambda *_: told.append(_), order
    )
    with pytest.raises(ApiError, match="modified"):
        await reconciler.reconcile(("ns", "chat"))
    assert told == []


class Evicted(Api):
    """An API server that lists a gateway pod that runs, and one that the kubelet has evicted: its object keeps the address."""

    async def get(self, path: str, **query: str) -> Document:
        pods = (("runs", "Running", "10.0.0.1"), ("evicted", "Failed", "10.0.0.2"))
        return {
            "items": [{"metadata": {"name": name}, "status": {"phase": phase, "podIP": at}} for name, phase, at in pods]
        }


async def test_a_gateway_pod_that_has_ended_is_not_asked() -> None:
    """Every decision waited 2 s for it, and no service was given less than its replicas, until somebody deleted the object; and another
    pod may have got its address, and would have been believed like a gateway of the system."""
    async with measuring_session() as session:
        api, prometheus = Evicted(None), Prometheus(session, "")
        sources = Sources(
            engines=EngineReadings(session),
            windows=GatewayWindows(session),
            engine_windows=EngineWindows(session),
            prometheus_windows=PrometheusWindows(prometheus),
            gates=PrometheusGates(prometheus),
            image="operator",
        )
        assert await Gatherer(api, Versions(api), Store(), sources, "system").gateways() == ["10.0.0.1"]


@pytest.mark.parametrize("relabelled", [REVISION_LABEL, SERVICE_LABEL])
async def test_a_relabelled_workload_is_repaired_and_not_deleted_as_another_revision_s(relabelled: str) -> None:
    """`kubectl label --overwrite` on a Deployment that serves: after five seconds it was deleted, with all pods of the service, as that of a
    revision, or of another service's revision, which nobody knows."""
    api, cluster = Server([], TimeoutError()), started()
    assert cluster.plan is not None
    plan, store = cluster.plan, Store()
    applier = Applier(api, Versions(api), store, RouteObjects(api), unrecorded)
    service = SERVICE | {"spec": cluster.spec}
    assert await applier.apply(service, plan) is None
    (workload,) = [child for child in plan.children if child["kind"] == "Deployment"]
    live = copy.deepcopy(store.find("Deployment", "ns", workload["metadata"]["name"]))
    assert live is not None
    live["metadata"]["labels"][relabelled] = "other"
    store.upsert("Deployment", live)
    if relabelled == SERVICE_LABEL:
        metadata, revision = SERVICE["metadata"], live["metadata"]["labels"][REVISION_LABEL]
        service = service | {"metadata": metadata | {"name": "other", "uid": "another"}}
        plan = replace(plan, children=())
    else:
        revision = "other"
    await applier.apply(service, replace(plan, delete=(revision,)))
    assert api.deleted == []


class NoGates(Api):
    """An API server that answers no write of a pod's status."""

    async def merge_lists(self, path: str, body: Mapping[str, Any]) -> Document:
        raise TimeoutError


async def test_a_readiness_gate_that_nobody_writes_keeps_no_other_spare_asleep() -> None:
    async with measuring_session() as session:
        spares = SpareOrders(NoGates(None), Store(), session, lambda: 60.0, lambda _: None)
        orders = [SpareOrder("spare-1", "", True, None), SpareOrder("spare-2", "127.0.0.1", None, False)]
        await spares.carry_out(("ns", "chat"), orders)
        assert list(spares._asking) == ["127.0.0.1"]
        await asyncio.gather(*spares._asking.values())
