"""URL paths of the kinds the operator reads and writes.

Every part of a path that comes from data is a name, or there is no path: no text of an alert or of a spec can lead a
request to another object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pagefleet_contract.names import API_VERSION, KIND, PLURAL, is_namespace, is_object_name

PLURALS = {
    "Deployment": "deployments",
    "LeaderWorkerSet": "leaderworkersets",
    "Service": "services",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "Event": "events",
    "Pod": "pods",
    "HTTPRoute": "httproutes",
    "InferencePool": "inferencepools",
    "Job": "jobs",
    "Lease": "leases",
    KIND: PLURAL,
}
_SEGMENT = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?")


class PathError(ValueError):
    """A part of a path is no name. The message has the part."""


def everywhere(api_version: str, kind: str, namespace: str = "") -> str:
    """A kind's collection in the whole cluster, or in `namespace`."""
    return collection(api_version, kind, namespace) if namespace else f"{_group(api_version)}/{PLURALS[kind]}"


def collection(api_version: str, kind: str, namespace: str) -> str:
    """A kind's collection in a namespace. Raises PathError."""
    if not is_namespace(namespace):
        raise PathError(f"{namespace[:80]!r} is not the name of a namespace")
    return f"{_group(api_version)}/namespaces/{namespace}/{PLURALS[kind]}"


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
