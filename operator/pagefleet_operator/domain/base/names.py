"""Names, labels and owner that every child shares (ARCHITECTURE.md, "Names on Kubernetes objects")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GROUP, VERSION, KIND, PLURAL = "pagefleet.io", "v1alpha1", "InferenceService", "inferenceservices"
PORT = 8000
MANAGED_LABEL, MANAGED = "app.kubernetes.io/managed-by", "pagefleet"
SERVICE_LABEL, REVISION_LABEL = "pagefleet.io/service", "pagefleet.io/revision"
SPARE_LABEL, AWAKE_GATE = "pagefleet.io/spare", "pagefleet.io/awake"  # of warm spares: label, readiness gate
# A pod that computes for another one of its group: it serves nobody, so no selector of a service's pods may match it.
WORKER_LABEL, WORKER_NAME = "pagefleet.io/worker-of", "pagefleet-engine-worker"


@dataclass(frozen=True)
class Child:
    """One revision of one InferenceService. `snapshot` is `revision.snapshot` of the spec, defaults filled in."""

    namespace: str
    service: str
    uid: str
    revision: str
    snapshot: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.service}-{self.revision}"

    @property
    def selector(self) -> dict[str, str]:
        return {SERVICE_LABEL: self.service, REVISION_LABEL: self.revision}

    @property
    def labels(self) -> dict[str, str]:
        return {
            MANAGED_LABEL: MANAGED,
            "app.kubernetes.io/name": "pagefleet-engine",
            **self.selector,
        }

    @property
    def worker_labels(self) -> dict[str, str]:
        return {
            MANAGED_LABEL: MANAGED,
            "app.kubernetes.io/name": WORKER_NAME,
            WORKER_LABEL: self.service,
            REVISION_LABEL: self.revision,
        }

    def metadata(self) -> dict[str, Any]:
        owner = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "name": self.service,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }
        return {
            "name": self.name,
            "namespace": self.namespace,
            "labels": self.labels,
            "ownerReferences": [owner],
        }
