"""A revision's PodDisruptionBudget: a node drain takes one replica at a time. It is of policy/v1; the shell adapts it.

It leaves warm spares out: asleep they count as unhealthy, and one of them would forbid every eviction. A pod that is not ready
may always be evicted: it serves nobody, and an engine that crashes again and again must not hold up the drain of its node.
"""

from __future__ import annotations

from typing import Any

from pagefleet_contract.names import SPARE_LABEL
from pagefleet_operator.domain.base.child import Child

KIND, VERSION = "PodDisruptionBudget", "policy/v1"
# From Kubernetes 1.27 on. An older server refuses to apply a field that it does not know: the shell leaves it out there.
EVICTION_POLICY = "unhealthyPodEvictionPolicy"


def disruption_budget(child: Child) -> dict[str, Any]:
    """Build the PodDisruptionBudget of a revision."""
    return {
        "apiVersion": VERSION,
        "kind": KIND,
        "metadata": child.metadata(),
        "spec": {
            "maxUnavailable": 1,
            "selector": {
                "matchLabels": child.selector,
                "matchExpressions": [{"key": SPARE_LABEL, "operator": "DoesNotExist"}],
            },
            EVICTION_POLICY: "AlwaysAllow",
        },
    }


def example(namespace: str) -> dict[str, Any]:
    """Build a budget of no pods that has the field, to see what the API server would store of it."""
    return {
        "apiVersion": VERSION,
        "kind": KIND,
        "metadata": {"name": "pagefleet-dry-run", "namespace": namespace},
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": {"app": "pagefleet-dry-run"}},
            EVICTION_POLICY: "AlwaysAllow",
        },
    }


def without_policy(manifest: dict[str, Any]) -> dict[str, Any]:
    """The budget for a server that does not store the field."""
    return {**manifest, "spec": {name: value for name, value in manifest["spec"].items() if name != EVICTION_POLICY}}
