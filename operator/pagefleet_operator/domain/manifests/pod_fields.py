"""The fields of pods that not every API server stores: an older one, or one whose feature is off, drops them without a word.

Pods without them would start all the same: without devices, or with an empty folder in place of the model. So the operator
asks first (a dry run, `kube.versions`), and makes no pods of a revision that needs a field which is dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_operator.domain.base.revision_spec import RevisionSpec, revision_spec
from pagefleet_operator.domain.runtimes.uris import mounted, sources


@dataclass(frozen=True)
class PodField:
    """`pod` and `container` are parts of a pod and its container that have the field. `needs` is who stores it, for people."""

    needs: str
    pod: Mapping[str, Any]
    container: Mapping[str, Any]


IMAGE_VOLUMES, RESOURCE_CLAIMS = "volumes[].image", "resourceClaims"
MOUNTED, CLAIM = "models", "devices"
FIELDS: Mapping[str, PodField] = {
    IMAGE_VOLUMES: PodField(
        "Kubernetes 1.35, or 1.31 with the feature gate ImageVolume",
        {"volumes": [{"name": MOUNTED, "image": {"reference": "pagefleet/none", "pullPolicy": "IfNotPresent"}}]},
        {"volumeMounts": [{"name": MOUNTED, "mountPath": "/models", "readOnly": True}]},
    ),
    RESOURCE_CLAIMS: PodField(
        "Kubernetes 1.34, or 1.32 with the feature gate DynamicResourceAllocation",
        {"resourceClaims": [{"name": CLAIM, "resourceClaimTemplateName": "none"}]},
        {"resources": {"claims": [{"name": CLAIM}]}},
    ),
}


def needed(spec: RevisionSpec) -> dict[str, str]:
    """The names of FIELDS that a revision's pods have, each with the field of the spec that asks for it. Total."""
    images = [field for field, source in sources(spec.model) if mounted(source, spec.model)]
    asking = {IMAGE_VOLUMES: images[0]} if images else {}
    return asking | ({RESOURCE_CLAIMS: "spec.pod.resourceClaims"} if spec.pod.resource_claims else {})


def needed_by(spec: object, status: Mapping[str, Any]) -> frozenset[str]:
    """The names of FIELDS that a service's pods have or will have. Total: the spec may be of any shape."""
    records = status.get("revisions")
    snapshots = [record.get("spec") for record in records if isinstance(record, Mapping)] if records else []
    return frozenset(name for one in (spec, *snapshots) for name in needed(revision_spec(one)))


def example(name: str, namespace: str) -> dict[str, Any]:
    """Build a Deployment without pods that has the field, to see what the API server would store of it."""
    field, labels = FIELDS[name], {"app": "pagefleet-dry-run"}
    container = {"name": "engine", "image": "pagefleet/none", **field.container}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "pagefleet-dry-run", "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container], **field.pod}},
        },
    }


def stored(sent: Any, answer: Any) -> bool:
    """Whether every field that was sent is in the answer. Values may differ: a webhook may rewrite them."""
    if isinstance(sent, Mapping):
        return isinstance(answer, Mapping) and all(
            name in answer and stored(value, answer[name]) for name, value in sent.items()
        )
    if isinstance(sent, list) and isinstance(answer, list):
        return all(any(_same(one, other) and stored(one, other) for other in answer) for one in sent)
    return answer is not None


def _same(one: Any, other: Any) -> bool:
    """Whether two entries of a list are the same one."""
    return isinstance(one, Mapping) and isinstance(other, Mapping) and one.get("name") == other.get("name")


def lacking(spec: RevisionSpec, dropped: Collection[str]) -> tuple[str, str] | None:
    """The first field that the revision needs and the API server drops, and the field of the spec that asks for it."""
    asking = needed(spec).items() if dropped else ()
    return next((entry for entry in asking if entry[0] in dropped), None)
