"""A revision's warm spares: a Deployment of their own beside the replicas', with pods that differ in three things.

A label, so that the replicas' PodDisruptionBudget leaves them out; a readiness gate that the operator keeps, so that
nobody meets a spare that was not woken, whichever gateway is in front; and a probe that sees a waking engine at once.
"""

from __future__ import annotations

from typing import Any

from pagefleet_contract.names import AWAKE_GATE, SPARE_LABEL
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.manifests.deployment import deployment

SPARE = {SPARE_LABEL: "true"}


def spare_deployment(child: Child, replicas: int) -> dict[str, Any]:
    made = deployment(child, replicas)
    metadata, chosen = made["metadata"], made["spec"]
    metadata |= {"name": f"{child.name}-spare", "labels": {**child.labels, **SPARE}}
    chosen["selector"] = {"matchLabels": {**child.selector, **SPARE}}
    # Spares are never Available, so a rolling update would wait for the new ones for ever.
    chosen["strategy"] = {"type": "Recreate"}
    template = chosen["template"]
    template["metadata"]["labels"] = {**child.labels, **SPARE}
    pod = template["spec"]
    pod["readinessGates"] = [{"conditionType": AWAKE_GATE}]
    pod["containers"][0]["readinessProbe"]["periodSeconds"] = 1
    return made
