"""A revision's PodDisruptionBudget: a node drain takes one replica at a time. It is of policy/v1; the shell adapts it.

It leaves warm spares out: asleep they count as unhealthy, and one of them would forbid every eviction.
"""

from __future__ import annotations

from typing import Any

from pagefleet_contract.names import SPARE_LABEL
from pagefleet_operator.domain.base.child import Child


def disruption_budget(child: Child) -> dict[str, Any]:
    """Build the PodDisruptionBudget of a revision."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": child.metadata(),
        "spec": {
            "maxUnavailable": 1,
            "selector": {
                "matchLabels": child.selector,
                "matchExpressions": [{"key": SPARE_LABEL, "operator": "DoesNotExist"}],
            },
        },
    }
