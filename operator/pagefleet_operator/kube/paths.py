"""The kinds of objects that the operator reads and writes, each once, and their URL paths.

Every part of a path that comes from data is a name, or there is no path: no text of an alert or of a spec can lead a
request to another object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_contract.names import (
    API_VERSION,
    KIND,
    MANAGED_SELECTOR,
    PLURAL,
    RECORD_SELECTOR,
    is_namespace,
    is_object_name,
)
from pagefleet_operator.domain.manifests.leaderworkerset import GROUP as SETS_GROUP
from pagefleet_operator.domain.manifests.leaderworkerset import KIND as SETS
from pagefleet_operator.domain.manifests.leaderworkerset import VERSION as SETS_VERSION
from pagefleet_operator.domain.records.manifest import API_VERSION as RECORD_VERSION
from pagefleet_operator.domain.records.manifest import KIND as RECORD_KIND
from pagefleet_operator.domain.status.gateway_api import POOL_KIND, ROUTE_KIND


@dataclass(frozen=True)
class ObjectKind:
    """One kind of object.

    `version` is the API version that our manifests give; "" where the server's is read for each cluster. `earlier` is the
    one of servers that lack `version`. A `watched` kind is watched, and listed from time to time, where its labels match `selector`. A `child` belongs to a
    revision; a `workload` is the child that makes the revision's pods.
    """

    name: str
    plural: str
    version: str = ""
    earlier: str = ""
    watched: bool = False
    selector: str = MANAGED_SELECTOR
    child: bool = False
    workload: bool = False

    @property
    def resource(self) -> tuple[str, str] | tuple[str, str, str]:
        """Group, version and plural; without the version where a server may have the earlier one."""
        group, _, version = self.version.rpartition("/")
        return (group, self.plural) if self.earlier else (group, version, self.plural)


# A revision's children are deleted in the opposite order: the workload, by which they are found, is the last.
KINDS: Mapping[str, ObjectKind] = {
    kind.name: kind
    for kind in (
        ObjectKind("Deployment", "deployments", "apps/v1", watched=True, child=True, workload=True),
        ObjectKind(SETS, "leaderworkersets", f"{SETS_GROUP}/{SETS_VERSION}", child=True, workload=True),
        ObjectKind("Service", "services", "v1", watched=True, child=True),
        ObjectKind(
            "PodDisruptionBudget", "poddisruptionbudgets", "policy/v1", "policy/v1beta1", watched=True, child=True
        ),
        ObjectKind(RECORD_KIND, "controllerrevisions", RECORD_VERSION, watched=True, selector=RECORD_SELECTOR),
        ObjectKind("Pod", "pods", "v1", watched=True),
        ObjectKind("Event", "events", "v1"),
        ObjectKind("Job", "jobs", "batch/v1"),
        ObjectKind("Lease", "leases", "coordination.k8s.io/v1"),
        ObjectKind(ROUTE_KIND, "httproutes"),
        ObjectKind(POOL_KIND, "inferencepools"),
        ObjectKind(KIND, PLURAL, API_VERSION),
    )
}
WATCHED = tuple(kind for kind in KINDS.values() if kind.watched)  # beside InferenceServices, and with our label
CHILDREN = tuple(kind for kind in KINDS.values() if kind.child)
WORKLOADS = tuple(kind.name for kind in KINDS.values() if kind.workload)
_SEGMENT = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?")


class PathError(ValueError):
    """A part of a path is no name. The message has the part."""


def everywhere(api_version: str, kind: str, namespace: str = "") -> str:
    """A kind's collection in the whole cluster, or in `namespace`."""
    return collection(api_version, kind, namespace) if namespace else f"{_group(api_version)}/{KINDS[kind].plural}"


def collection(api_version: str, kind: str, namespace: str) -> str:
    """A kind's collection in a namespace. Raises PathError."""
    if not is_namespace(namespace):
        raise PathError(f"{namespace[:80]!r} is not the name of a namespace")
    return f"{_group(api_version)}/namespaces/{namespace}/{KINDS[kind].plural}"


def named(api_version: str, kind: str, namespace: str, name: str) -> str:
    """One object. Raises PathError."""
    if not is_object_name(name):
        raise PathError(f"{name[:80]!r} is not the name of an object")
    return f"{collection(api_version, kind, namespace)}/{name}"


def of(manifest: Mapping[str, Any]) -> str:
    metadata = manifest["metadata"]
    return named(manifest["apiVersion"], manifest["kind"], metadata["namespace"], metadata["name"])


def inference_service(namespace: str, name: str) -> str:
    return named(API_VERSION, KIND, namespace, name)


def is_path(text: str) -> bool:
    """Whether every segment is made of a name's characters: nothing in it is a query, an escape or a way upwards."""
    return text.startswith("/") and all(_SEGMENT.fullmatch(segment) for segment in text[1:].split("/"))


def _group(api_version: str) -> str:
    path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    if api_version.count("/") > 1 or not is_path(path):
        raise PathError(f"{api_version[:80]!r} is not an API group's version")
    return path
