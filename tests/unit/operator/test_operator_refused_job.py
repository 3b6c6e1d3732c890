"""Protects the status while objects of a service are refused: every decision is written, one Event quotes the refusal, and the
condition Degraded says so until they are accepted."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from support.virtual.cluster import Cluster, started

from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.observation import PodFault
from pagefleet_operator.domain.status.status import Condition, Phase
from pagefleet_operator.kube.apply import Applier
from pagefleet_operator.kube.client import Api, ApiError, Document
from pagefleet_operator.kube.gateway_api import RouteObjects
from pagefleet_operator.kube.store import Store
from pagefleet_operator.kube.versions import Versions

SERVICE: Document = {
    "apiVersion": "pagefleet.io/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"namespace": "ns", "name": "chat", "uid": "uid", "resourceVersion": "1"},
}


class NoJobs(Api):
    """An API server whose quota allows no Job, and whose webhook refuses the kinds in `denied`."""

    def __init__(self) -> None:
        super().__init__(None)
        self.denied: set[str] = set()
        self.statuses: list[Any] = []
        self.reasons: list[str] = []

    async def find(self, path: str) -> Document | None:
        return None

    async def get(self, path: str, **query: str) -> Document:
        return {"versions": [{"groupVersion": "policy/v1"}]}

    async def apply(self, path: str, body: Mapping[str, Any], manager: str) -> Document:
        if body["kind"] in self.denied:
            raise ApiError(403, "admission webhook denied the request: no limits.cpu")
        stored = copy.deepcopy(dict(body))
        stored["metadata"] |= {"uid": path, "resourceVersion": "1"}
        return stored

    async def replace(self, path: str, body: Mapping[str, Any]) -> Document:
        self.statuses.append(body["status"])
        return dict(body)

    async def create(self, path: str, body: Mapping[str, Any], **query: str) -> Document:
        if body["kind"] == "Job":
            raise ApiError(
                403, 'jobs.batch "chat-load" is forbidden: exceeded quota: jobs, limited: count/jobs.batch=0'
            )
        if not query:  # no dry run
            self.reasons.append(body["reason"])
        return dict(body)


async def no_records(_: object) -> list[ApiError]:
    return []


async def test_a_job_that_the_api_server_refuses_keeps_no_decision_from_being_written() -> None:
    cluster = started(steps=[{"loadTest": {"timeout": "60s"}}])
    cluster.until(lambda status: status.rollout.phase is Phase.LOAD_TEST)
    assert cluster.plan is not None and cluster.plan.job is not None

    api = NoJobs()
    applier = Applier(api, Versions(api), Store(), RouteObjects(api), no_records)
    service = SERVICE | {"spec": cluster.spec, "status": {}}
    for _ in range(2):
        assert "exceeded quota" in str(await applier.apply(service, cluster.plan))
    assert [status["rollout"]["phase"] for status in api.statuses] == ["LoadTest"] * 2
    assert api.reasons.count("ChildRefused") == 1
    assert codec.load(api.statuses[0]).rollout.phase is Phase.LOAD_TEST


class Refusing:
    """One operator beside a cluster in virtual time, whose objects an API server stores or refuses."""

    def __init__(self, cluster: Cluster, api: NoJobs) -> None:
        self.cluster, self.api = cluster, api
        self.restart()

    def restart(self) -> None:
        self.store = Store()
        self.applier = Applier(self.api, Versions(self.api), self.store, RouteObjects(self.api), no_records)

    async def decide(self) -> Condition:
        """Decide and apply once. Returns the condition Degraded."""
        self.cluster.wait()
        observation = replace(self.cluster.observe(), refused=self.store.refused(("ns", "chat")))
        self.cluster.decided(observation)
        assert self.cluster.plan is not None
        await self.applier.apply(SERVICE | {"spec": self.cluster.spec, "status": {}}, self.cluster.plan)
        return self.cluster.condition("Degraded")


async def test_a_service_is_degraded_while_one_of_its_objects_is_refused() -> None:
    """An Event that was gone after an hour was all that told of it: a rollout started for ever, and `Degraded` said that nothing is wrong."""
    refusing = Refusing(started(), NoJobs())
    refusing.api.denied = {"Deployment"}
    await refusing.decide()
    degraded = await refusing.decide()
    assert (degraded.status, degraded.reason) == ("True", "ChildRefused")
    assert degraded.message.startswith("the API server refuses the Deployment of revision ")
    assert "no limits.cpu" in degraded.message
    since = degraded.last_transition_time
    refusing.restart()
    for _ in range(3):
        assert (await refusing.decide()).last_transition_time == since, "a new operator knows it from the condition"
    assert (await refusing.decide()).status == "True"
    refusing.api.denied = set()
    await refusing.decide()
    assert (await refusing.decide()).reason == "AsExpected"


async def test_a_refused_object_hides_no_other_problem_and_is_announced_once() -> None:
    refusing = Refusing(started(), NoJobs())
    refusing.api.denied = {"PodDisruptionBudget"}
    fault = PodFault("ImagePullBackOff", "there is no such image", "spec.engine.image")
    for _ in range(4):
        refusing.cluster.wait()
        seen = refusing.cluster.observe()
        stable = seen.revisions[refusing.cluster.status.stable]
        ill = replace(stable, pods=tuple(replace(pod, ready=False, fault=fault) for pod in stable.pods))
        seen = replace(
            seen, revisions={**seen.revisions, stable.hash: ill}, refused=refusing.store.refused(("ns", "chat"))
        )
        refusing.cluster.decided(seen)
        assert refusing.cluster.plan is not None
        await refusing.applier.apply(SERVICE | {"spec": refusing.cluster.spec, "status": {}}, refusing.cluster.plan)
    degraded = refusing.cluster.condition("Degraded")
    assert degraded.reason == "ImagePullBackOff"
    assert "there is no such image; the API server refuses the PodDisruptionBudget" in degraded.message
    assert refusing.api.reasons.count("ImagePullBackOff") == 1
    assert refusing.api.reasons.count("ChildRefused") == 2, "one of each revision"


async def test_a_refused_route_and_a_refused_record_degrade_the_service_too() -> None:
    """A route that nobody could write was said to be on its way, and that a restore would lack records was in a log only."""
    route = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "chat", "namespace": "ns"}, "spec": {}}  # fmt: skip
    cluster, api, store = started(), NoJobs(), Store()
    api.denied = {"HTTPRoute"}
    quota = [ApiError(403, f"exceeded quota: record {number}") for number in range(2)]

    async def no_room(_: object) -> list[ApiError]:
        return quota

    applier = Applier(api, Versions(api), store, RouteObjects(api), no_room)

    async def decide(times: int) -> None:
        for _ in range(times):
            cluster.wait()
            cluster.decided(replace(cluster.observe(), refused=store.refused(("ns", "chat"))))
            assert cluster.plan is not None
            await applier.apply(SERVICE | {"spec": cluster.spec, "status": {}}, replace(cluster.plan, routes=(route,)))

    await decide(3)
    degraded = cluster.condition("Degraded")
    assert degraded.reason == "ChildRefused"
    assert "spec.traffic: the API server refuses the HTTPRoute: admission webhook denied" in degraded.message
    assert "refuses the record of a revision (ControllerRevision): exceeded quota: record 0" in degraded.message
    assert (api.reasons.count("RouteRefused"), api.reasons.count("ChildRefused")) == (1, 1)
    api.denied = set()
    quota.clear()
    await decide(2)
    assert cluster.condition("Degraded").reason == "AsExpected"
