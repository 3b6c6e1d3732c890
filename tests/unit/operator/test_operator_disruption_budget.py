"""Protects the drain of nodes: an engine that crashes again and again does not hold it up, and no API server gets a field of a
PodDisruptionBudget that it does not know, because it would refuse the whole object."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from support.golden_manifests import child_of, spec_of

from pagefleet_operator.domain.manifests.disruption_budget import EVICTION_POLICY, disruption_budget
from pagefleet_operator.kube.client import ApiError
from pagefleet_operator.kube.versions import Versions

Answer = Callable[[dict[str, Any]], dict[str, Any]]


class Server:
    """An API server that serves `policy` in these versions, and answers a dry run by `answer`."""

    def __init__(self, answer: Answer, *served: str) -> None:
        self.answer, self.served, self.asked = answer, served or ("policy/v1",), 0

    async def get(self, path: str) -> dict[str, Any]:
        assert path == "/apis/policy"
        return {"versions": [{"groupVersion": one} for one in self.served]}

    async def create(self, path: str, body: dict[str, Any], **query: str) -> dict[str, Any]:
        assert query == {"dryRun": "All"}, "nothing may be written"
        assert path.startswith("/apis/policy/v1/namespaces/") and path.endswith("/poddisruptionbudgets")
        self.asked += 1
        return self.answer(copy.deepcopy(body))


def without_policy(body: dict[str, Any]) -> dict[str, Any]:
    """As Kubernetes 1.26 and older answer."""
    body["spec"].pop(EVICTION_POLICY)
    return body


def refuses(_: dict[str, Any]) -> dict[str, Any]:
    raise ApiError(403, "a webhook denied the request")


@pytest.mark.parametrize(
    ("answer", "served", "sent", "asked"),
    [
        (lambda body: body, "policy/v1", "AlwaysAllow", 1),
        (without_policy, "policy/v1", None, 1),
        (refuses, "policy/v1", None, 1),
        (refuses, "policy/v1beta1", None, 0),
    ],
)
async def test_a_budget_lets_pods_that_are_not_ready_go_where_the_server_knows_how(
    answer: Answer, served: str, sent: str | None, asked: int
) -> None:
    server = Server(answer, served)
    versions, made = Versions(server), disruption_budget(child_of(spec_of("minimal")))  # type: ignore[arg-type]
    for _ in range(3):
        adapted = await versions.adapted(made)
        assert adapted["apiVersion"] == served and adapted["spec"].get(EVICTION_POLICY) == sent
        assert adapted["spec"]["maxUnavailable"] == 1
    assert server.asked == asked, "every service asks, and the answer is kept for a while"


async def test_other_children_stay_as_they_are() -> None:
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "team-a"}, "spec": {"replicas": 1}}
    assert await Versions(Server(refuses)).adapted(made) == made  # type: ignore[arg-type]
