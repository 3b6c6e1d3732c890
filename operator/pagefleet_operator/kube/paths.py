"""URL paths of the kinds the operator reads and writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pagefleet_contract.names import GROUP, KIND, PLURAL, VERSION
from pagefleet_operator.domain.spec.schema.patterns import OBJECT_NAME

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
    KIND: PLURAL,
}


def everywhere(api_version: str, kind: str, namespace: str = "") -> str:
    """A kind's collection in the whole cluster, or in `namespace`."""
    return collection(api_version, kind, namespace).replace("/namespaces//", "/")


def collection(api_version: str, kind: str, namespace: str) -> str:
    prefix = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    return f"{prefix}/namespaces/{namespace}/{PLURALS[kind]}"


def of(manifest: Mapping[str, Any]) -> str:
    metadata = manifest["metadata"]
    return f"{collection(manifest['apiVersion'], manifest['kind'], metadata['namespace'])}/{metadata['name']}"


def inference_service(namespace: str, name: str) -> str:
    return f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}/{name}"


def is_name(text: str) -> bool:
    """Whether it can be an object's name, and so a part of a path."""
    return len(text) <= 253 and re.fullmatch(OBJECT_NAME, text) is not None
