"""Names, labels and owner that every child shares (docs/reference/contract/kubernetes-objects.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pagefleet_contract.addresses import EVERY_IPV4
from pagefleet_contract.names import (
    API_VERSION,
    ENGINE,
    KIND,
    MANAGED,
    MANAGED_LABEL,
    NAME_LABEL,
    PREFILL,
    PREFILL_LABEL,
    REVISION_LABEL,
    SERVICE_LABEL,
    WORKER,
    WORKER_LABEL,
)
from pagefleet_operator.domain.base.revision_spec import RevisionSpec, revision_spec


@dataclass(frozen=True)
class Child:
    """One revision of one InferenceService. `snapshot` is `revision.snapshot` of the spec, defaults filled in.
    `image` is the operator's own image, "" for that of its release: pods fetch models with it. Engines listen on `address`.
    """

    namespace: str
    service: str
    uid: str
    revision: str
    snapshot: Mapping[str, Any]
    image: str = ""
    address: str = EVERY_IPV4

    @cached_property
    def spec(self) -> RevisionSpec:
        """The snapshot as typed values."""
        return revision_spec(self.snapshot)

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
            NAME_LABEL: ENGINE,
            **self.selector,
        }

    @property
    def worker_labels(self) -> dict[str, str]:
        return {
            MANAGED_LABEL: MANAGED,
            NAME_LABEL: WORKER,
            WORKER_LABEL: self.service,
            REVISION_LABEL: self.revision,
        }

    @property
    def prefill_selector(self) -> dict[str, str]:
        return {PREFILL_LABEL: self.service, REVISION_LABEL: self.revision}

    @property
    def prefill_labels(self) -> dict[str, str]:
        return {MANAGED_LABEL: MANAGED, NAME_LABEL: PREFILL, **self.prefill_selector}

    def with_own(self, labels: Mapping[str, str]) -> dict[str, Any]:
        """Return the metadata with these labels and those of spec.pod, whose annotations are in it too."""
        pod = self.spec.pod
        metadata: dict[str, Any] = {"labels": {**pod.labels, **labels}}
        return {**metadata, "annotations": dict(pod.annotations)} if pod.annotations else metadata

    def metadata(self) -> dict[str, Any]:
        owner = {
            "apiVersion": API_VERSION,
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
