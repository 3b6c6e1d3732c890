"""Protects the status while a load test's Job is refused: every decision is written, and one Event quotes the refusal."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from support.virtual.cluster import started

from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.status import Phase
from pagefleet_operator.kube.apply import Applier
from pagefleet_operator.kube.client import Api, ApiError, Document
from pagefleet_operator.kube.gateway_api import RouteObjects
from pagefleet_operator.kube.store import Store
from pagefleet_operator.kube.versions import Versions


class NoJobs(Api):
    """An API server whose quota allows no Job."""

    def __init__(self) -> None:
        super().__init__(None)
        self.statuses: list[Any] = []
        self.reasons: list[str] = []

    async def find(self, path: str) -> Document | None:
        return None

    async def get(self, path: str, **query: str) -> Document:
        return {"versions": [{"groupVersion": "policy/v1"}]}

    async def apply(self, path: str, body: Mapping[str, Any], manager: str) -> Document:
        return copy.deepcopy(dict(body))

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


async def test_a_job_that_the_api_server_refuses_keeps_no_decision_from_being_written() -> None:
    cluster = started(steps=[{"loadTest": {"timeout": "60s"}}])
    cluster.until(lambda status: status.rollout.phase is Phase.LOAD_TEST)
    assert cluster.plan is not None and cluster.plan.job is not None

    async def no_records(_: object) -> list[ApiError]:
        return []

    api = NoJobs()
    applier = Applier(api, Versions(api), Store(), RouteObjects(api), no_records)
    service = {"apiVersion": "pagefleet.io/v1alpha1", "kind": "InferenceService", "spec": cluster.spec, "status": {},
               "metadata": {"namespace": "ns", "name": "chat", "uid": "uid", "resourceVersion": "1"}}  # fmt: skip
    for _ in range(2):
        assert "exceeded quota" in str(await applier.apply(service, cluster.plan))
    assert [status["rollout"]["phase"] for status in api.statuses] == ["LoadTest"] * 2
    assert api.reasons.count("ChildRefused") == 1
    assert codec.load(api.statuses[0]).rollout.phase is Phase.LOAD_TEST
