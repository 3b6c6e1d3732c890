"""A revision's prefill pods: a Deployment of their own beside that of the decode pods, and its PodDisruptionBudget.

They run the same engine from the same template, as the engine checks when two of them meet. Their labels are their own, so that no
Service, InferencePool or gateway that looks for a service's pods finds them: only the routing sidecars of their revision ask them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pagefleet_contract.disaggregation import DEFAULT_MIN_PROMPT_TOKENS
from pagefleet_contract.engine_metrics import annotation, engine_from
from pagefleet_contract.names import ENGINE_ANNOTATION, PREFILL_LABEL
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.base.revision_spec import revision_spec
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.disruption_budget import disruption_budget
from pagefleet_operator.domain.manifests.retained import Templates, with_templates
from pagefleet_operator.domain.runtimes.catalog import adapter_of
from pagefleet_operator.domain.runtimes.routing_sidecar import without_sidecar
from pagefleet_operator.domain.status.observation import RevisionReading
from pagefleet_operator.domain.status.status import PrefillRecord, RevisionRecord


def prefill_pods(known: Iterable[RevisionRecord], replicas: Mapping[str, int]) -> dict[str, int]:
    """The prefill pods of every revision that has any: none while it has no replicas."""
    counts = {record.hash: revision_spec(record.spec).prefill_replicas for record in known if record.spec}
    return {name: count for name, count in counts.items() if count and replicas.get(name)}


def prefill_record(
    reading: RevisionReading, record: RevisionRecord, replicas: Mapping[str, int]
) -> PrefillRecord | None:
    """The prefill pods that a revision has and should have, for people; None where there are none of either."""
    desired = prefill_pods((record,), replicas).get(record.hash, 0)
    made = PrefillRecord(reading.prefill_ready, desired)
    return made if made != PrefillRecord() else None


def prefill_deployment(child: Child, replicas: int, templates: Templates | None = None) -> dict[str, Any]:
    """Build the Deployment of a revision's prefill pods. `templates` are those that the revision's decode pods run with."""
    made = with_templates(deployment(child, replicas), templates)
    given, split = child.spec.engine.disaggregation, adapter_of(child.spec).split
    least = (given.min_prompt_tokens if given else None) or DEFAULT_MIN_PROMPT_TOKENS
    named = {"prefills_all": True} if split and split.computes_all else {"prefill_from": least}
    metadata, spec = made["metadata"], made["spec"]
    metadata |= _named(child, metadata)
    spec["selector"] = {"matchLabels": child.prefill_selector}
    template = spec["template"]
    described = template["metadata"].get("annotations", {})
    engine = annotation(replace(engine_from(described.get(ENGINE_ANNOTATION, "")), **named))
    template["metadata"] = {
        **child.with_own(child.prefill_labels),
        "annotations": {**described, ENGINE_ANNOTATION: engine},
    }
    pod = template["spec"] = without_sidecar(template["spec"])
    if split is not None:
        pod["containers"][0]["args"] = split.of_prefill(pod["containers"][0]["args"])
    for constraint in pod.get("topologySpreadConstraints", ()):
        constraint["labelSelector"] = {"matchLabels": child.prefill_selector}
    return made


def prefill_disruption_budget(child: Child) -> dict[str, Any]:
    """Build the PodDisruptionBudget of a revision's prefill pods."""
    made = disruption_budget(child)
    made["metadata"] |= _named(child, made["metadata"])
    made["spec"]["selector"] = {"matchLabels": child.prefill_selector}
    return made


def _named(child: Child, metadata: dict[str, Any]) -> dict[str, Any]:
    return {"name": f"{child.name}-prefill", "labels": {**metadata["labels"], PREFILL_LABEL: child.service}}
