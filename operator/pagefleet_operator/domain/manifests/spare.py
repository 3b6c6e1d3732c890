"""A revision's warm spares: a Deployment of their own beside that of the replicas, with pods that differ in four ways.

They have a label, so that the replicas' PodDisruptionBudget leaves them out. They have a readiness gate that the
operator sets, so that no gateway routes requests to a spare that was not woken. Their readiness probe runs every
second, so that a waking engine is seen at once. An engine whose routes of sleep are not for everybody is behind a
routing sidecar. Replicas have none of this, so spec.scaling.warmSpares makes no new revision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_contract.engine_metrics import EngineMetrics, annotation, engine_from
from pagefleet_contract.names import AWAKE_GATE, ENGINE_ANNOTATION, SPARE_LABEL
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.manifests import deployment as replicas_of
from pagefleet_operator.domain.manifests.retained import Templates, with_templates
from pagefleet_operator.domain.runtimes.adapter import Sleep
from pagefleet_operator.domain.runtimes.catalog import adapter_of
from pagefleet_operator.domain.runtimes.routing_sidecar import guarded

SPARE = {SPARE_LABEL: "true"}


def spare_deployment(child: Child, replicas: int, templates: Templates | None = None) -> dict[str, Any]:
    """Build the Deployment of a revision's warm spares. `templates` are those that the revision's replicas run with."""
    spare = with_templates(replicas_of.deployment(child, replicas), templates)
    metadata, spec = spare["metadata"], spare["spec"]
    metadata |= {"name": f"{child.name}-spare", "labels": {**metadata["labels"], **SPARE}}
    spec["selector"] = {"matchLabels": {**child.selector, **SPARE}}
    # Spares are never Available, so a rolling update would wait for the new ones for ever.
    spec["strategy"] = {"type": "Recreate"}
    template = spec["template"]
    template["metadata"]["labels"] = {**template["metadata"]["labels"], **SPARE}
    sleep = adapter_of(child.spec).sleep
    if sleep is not None and sleep.guarded:
        template["spec"] = guarded(template["spec"], child, replicas_of.release(), sleep)
        template["metadata"]["annotations"] = _telling(template["metadata"].get("annotations", {}), sleep)
    pod = template["spec"]
    pod["readinessGates"] = [{"conditionType": AWAKE_GATE}]
    pod["containers"][0]["readinessProbe"]["periodSeconds"] = 1
    return spare


def _telling(annotations: Mapping[str, str], sleep: Sleep) -> dict[str, str]:
    """The annotations of a pod, of which that of its engine also names the metric of its sleep."""
    engine = engine_from(annotations.get(ENGINE_ANNOTATION, ""))
    metrics = replace(engine.metrics or EngineMetrics(), sleeping=sleep.metric)
    return {**annotations, ENGINE_ANNOTATION: annotation(replace(engine, metrics=metrics))}
