"""Protects the API server from the operator's readings of the Gateway API: a settled service whose object has not changed asks for
its route and pool only every half minute, also to compare them with its plan, one that awaits a Gateway's answer or has changed asks each time, and a chain of
fallbacks is read from what the watches reported, without a request. A route that has moved on is not overwritten unseen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pagefleet_operator.kube import gateway_api
from pagefleet_operator.kube.apply import CONFLICT, Applier
from pagefleet_operator.kube.client import Api, ApiError, Document
from pagefleet_operator.kube.gateway_api import GatewayApis, RouteObjects
from pagefleet_operator.kube.store import Store
from pagefleet_operator.kube.versions import Versions
from pagefleet_operator.metrics.engine_readings import EngineReadings
from pagefleet_operator.metrics.engine_windows import EngineWindows
from pagefleet_operator.metrics.fetching import measuring_session
from pagefleet_operator.metrics.gateway_windows import GatewayWindows
from pagefleet_operator.metrics.prometheus_client import Prometheus
from pagefleet_operator.metrics.prometheus_windows import PrometheusWindows
from pagefleet_operator.metrics.promql_gates import PrometheusGates
from pagefleet_operator.observe import Gatherer, Sources

ESTABLISHED = {"conditions": [{"type": "Established", "status": "True"}]}


class Counting(Api):
    """An API server with the CRD of HTTPRoutes and one route; `asked` has the paths."""

    def __init__(self, accepted: str) -> None:
        super().__init__(None)
        self.asked: list[str] = []
        conditions = [
            {"type": kind, "status": accepted, "observedGeneration": 1} for kind in ("Accepted", "ResolvedRefs")
        ]
        self.route = {
            "metadata": {"name": "chat", "uid": "u", "generation": 1},
            "status": {"parents": [{"parentRef": {"name": "edge"}, "conditions": conditions}]},
        }

    async def find(self, path: str) -> Document | None:
        self.asked.append(path)
        if path.endswith("/httproutes.gateway.networking.k8s.io"):
            return {"spec": {"versions": [{"name": "v1", "served": True}]}, "status": ESTABLISHED}
        return self.route if "/httproutes/" in path else None

    @property
    def routes_read(self) -> int:
        return sum("/httproutes/" in path for path in self.asked)


async def test_a_settled_service_is_read_again_only_when_it_has_changed_or_time_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, now = Counting("True"), [1000.0]
    monkeypatch.setattr(gateway_api.time, "monotonic", lambda: now[0])
    apis = GatewayApis(api, RouteObjects(api))
    first = await apis.read("ns", "chat", "7")
    assert first.route is not None and api.routes_read == 1
    for _ in range(10):
        now[0] += 2.0
        assert await apis.read("ns", "chat", "7") == first
    assert api.routes_read == 1
    await apis.read("ns", "chat", "8")
    assert api.routes_read == 2, "the object has changed"
    await apis.read("ns", "other", "8")
    assert api.routes_read == 3, "another service has its own route"
    now[0] += gateway_api.SETTLED_SECONDS + 1
    await apis.read("ns", "chat", "8")
    assert api.routes_read == 4


@pytest.mark.parametrize("change", ["unanswered", "refused", "older", "none"])
async def test_a_service_that_awaits_a_gateway_s_answer_is_read_each_time(change: str) -> None:
    api = Counting("False" if change == "refused" else "True")
    if change == "unanswered":
        api.route["status"] = {}
    if change == "older":
        api.route["metadata"]["generation"] = 2
    if change == "none":
        api.route = None  # type: ignore[assignment]
    apis = GatewayApis(api, RouteObjects(api))
    for _ in range(3):
        await apis.read("ns", "chat", "7")
    assert sum("/httproutes/" in path for path in api.asked) == 3


def test_a_chain_of_fallbacks_is_read_from_what_is_known() -> None:
    def service(fallback: str) -> dict[str, Any]:
        traffic = {"fallback": {"service": fallback}} if fallback else {}
        return {"spec": {"model": {"servedName": "m"}, "traffic": traffic}}

    known = {("ns", "small"): service("tiny"), ("ns", "tiny"): service("small")}
    chain = gateway_api.fallbacks(lambda *key: known.get(key), "ns", "chat", service("small")["spec"])
    assert [(one.name, one.exists) for one in chain] == [("small", True), ("tiny", True), ("small", True)]
    assert gateway_api.fallbacks(lambda *_: None, "ns", "chat", service("")["spec"]) == ()
    (missing,) = gateway_api.fallbacks(lambda *_: None, "ns", "chat", service("gone")["spec"])
    assert not missing.exists


class Routes(Counting):
    """An API server that stores the route as server-side apply does: under the resourceVersion that the write names."""

    def __init__(self) -> None:
        super().__init__("True")
        self.writes = 0
        self.edit()

    async def apply(self, path: str, body: Mapping[str, Any], manager: str) -> Document:
        metadata = body["metadata"]
        if metadata.get("resourceVersion", self._version) != self._version:
            raise ApiError(CONFLICT, "the object has been modified")
        self.writes += 1
        self.edit(spec=body["spec"], annotations=metadata["annotations"])
        return self.route

    def edit(self, **change: Any) -> None:
        """Change the route, as any writer does."""
        metadata = {**self.route["metadata"], "resourceVersion": str(int(self._version) + 1)}
        if "annotations" in change:
            metadata["annotations"] = change.pop("annotations")
        self.route = {"kind": "HTTPRoute", **self.route, **change, "metadata": metadata}

    @property
    def _version(self) -> str:
        return str(self.route["metadata"].get("resourceVersion", "0"))


def applier_of(api: Api, objects: RouteObjects) -> Applier:
    async def no_records(_: object) -> list[ApiError]:
        return []

    return Applier(api, Versions(api), Store(), objects, no_records)


def route(weight: int) -> dict[str, Any]:
    api = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute"}
    return {**api, "metadata": {"name": "chat", "namespace": "ns"}, "spec": {"weight": weight}}


async def test_a_settled_route_is_compared_without_a_request_and_repaired_within_half_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, now = Routes(), [1000.0]
    monkeypatch.setattr(gateway_api.time, "monotonic", lambda: now[0])
    objects = RouteObjects(api)
    apis, applier = GatewayApis(api, objects), applier_of(api, objects)

    async def decide(weight: int = 100) -> bool:
        now[0] += 5.0
        await apis.read("ns", "chat", "7")
        return await applier._route({}, route(weight))

    assert await decide()
    for _ in range(60):
        assert not await decide()
    assert (api.writes, api.routes_read) == (1, 11), "72 when each decision asked"
    api.edit(spec={"weight": 77})
    decisions = 0
    while api.route["spec"] != {"weight": 100}:
        await decide()
        decisions += 1
    assert decisions * 5.0 <= gateway_api.SETTLED_SECONDS + 5.0
    assert await decide(weight=90) and api.route["spec"] == {"weight": 90}, "a new plan is written at once"


async def test_a_route_that_has_moved_on_is_read_again_before_it_is_written() -> None:
    api = Routes()
    objects = RouteObjects(api)
    applier = applier_of(api, objects)
    assert await applier._route({}, route(100))
    api.edit(status={"parents": []})
    with pytest.raises(ApiError) as refused:
        await applier._route({}, route(90))
    assert refused.value.status == CONFLICT and api.route["spec"] == {"weight": 100}
    assert await applier._route({}, route(90)) and api.route["spec"] == {"weight": 90}


class Hanging(Api):
    """An API server whose conversion webhook of HTTPRoutes hangs, and which lists no gateways."""

    async def get(self, path: str, **query: str) -> Document:
        return {"items": []}

    async def find(self, path: str) -> Document | None:
        raise TimeoutError


async def test_a_gateway_api_that_is_not_answered_leaves_the_other_parts_of_a_decision() -> None:
    """No alert rolled such a service back: each decision about it failed."""
    metadata = {"namespace": "ns", "name": "chat", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    spec = {"model": {"source": "hf://a/b"}, "traffic": {"provider": "GatewayAPI"}}
    async with measuring_session() as session:
        api, prometheus = Hanging(None), Prometheus(session, "")
        sources = Sources(
            engines=EngineReadings(session),
            windows=GatewayWindows(session),
            engine_windows=EngineWindows(session),
            prometheus_windows=PrometheusWindows(prometheus),
            gates=PrometheusGates(prometheus),
            image="operator",
        )
        gatherer = Gatherer(api, Versions(api), Store(), sources, "system")
        observation = await gatherer.observe({"metadata": metadata, "spec": spec})
    assert observation.gateway_api is None and observation.spec == spec
