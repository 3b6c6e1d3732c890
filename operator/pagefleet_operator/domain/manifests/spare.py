"""A revision's warm spares: a Deployment of their own beside that of the replicas, with pods that differ in three ways.

They have a label, so that the replicas' PodDisruptionBudget leaves them out. They have a readiness gate that the
operator sets, so that no gateway routes requests to a spare that was not woken. Their readiness probe runs every
second, so that a waking engine is seen at once.
"""

from __future__ import annotations

from typing import Any

from pagefleet_contract.names import AWAKE_GATE, SPARE_LABEL
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.retained import Templates, with_templates

SPARE = {SPARE_LABEL: "true"}


def spare_deployment(child: Child, replicas: int, templates: Templates | None = None) -> dict[str, Any]:
    """Build the Deployment of a revision's warm spares. `templates` are those that the revision's replicas run with."""
    spare = with_templates(deployment(child, replicas), templates)
    metadata, spec = spare["metadata"], spare["spec"]
    metadata |= {"name": f"{child.name}-spare", "labels": {**metadata["labels"], **SPARE}}
    spec["selector"] = {"matchLabels": {**child.selector, **SPARE}}
    # Spares are never Available, so a rolling update would wait for the new ones for ever.
    spec["strategy"] = {"type": "Recreate"}
    template = spec["template"]
    template["metadata"]["labels"] = {**template["metadata"]["labels"], **SPARE}
    pod = template["spec"]
    pod["readinessGates"] = [{"conditionType": AWAKE_GATE}]
    pod["containers"][0]["readinessProbe"]["periodSeconds"] = 1
    return spare
