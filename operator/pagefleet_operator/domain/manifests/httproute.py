"""A service's HTTPRoute, of gateway.networking.k8s.io: which requests go to which revision, for gateways of others.

Source: https://gateway-api.sigs.k8s.io/reference/spec/ (v1). A client's base URL is the same as at our own gateway,
`/<namespace>/<service>/v1`. With host names of the service's own it is `/v1`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pagefleet_contract.headers import CLIENT_HEADER, PREFILL_HEADER
from pagefleet_contract.names import API_VERSION, KIND, MANAGED, MANAGED_LABEL, NAME_LABEL, SERVICE_LABEL
from pagefleet_operator.domain.spec.traffic import GatewayApi, Parent
from pagefleet_operator.domain.status.gateway_api import POOL_GROUP, POOL_KIND, ROUTE_GROUP, ROUTE_KIND, Features

SERVICE_PORT = 80


@dataclass(frozen=True)
class TrafficSplit:
    """How requests are split among revisions.

    `weights` has the revisions that get requests. `canary_header` are the headers that force the `canary`; "" and None
    when nothing forces it. `mirror` is the revision that gets copies, and of how many requests in 100.
    """

    weights: tuple[tuple[str, int], ...]
    canary: str = ""
    canary_header: Mapping[str, str] | None = None
    mirror: tuple[str, float] | None = None


def http_route(
    metadata: Mapping[str, Any],
    settings: GatewayApi,
    features: Features,
    split: TrafficSplit,
    timeout: float,
    *,
    pool: bool,
) -> dict[str, Any]:
    """Lead to the service's InferencePool (`pool`), whose picker splits, or to the revisions' Services by weight."""
    prefix = f"/{metadata['namespace']}/{metadata['name']}/v1"
    path = "/v1" if settings.hostnames else prefix
    # A pool's picker removes what clients say of themselves.
    changed = [*([] if settings.hostnames else [_rewrite()]), *([] if pool else [_unforged()])]
    rules = []
    if split.canary and split.canary_header and not pool:
        headers = [{"type": "Exact", "name": n, "value": v} for n, v in sorted(split.canary_header.items())]
        rules.append(_rule(path, headers, changed, [_service(metadata["name"], split.canary, 100)], features, timeout))
    backends = [_pool(metadata["name"])] if pool else _services(metadata["name"], split.weights)
    filters = [*copy.deepcopy(changed), *_mirrors(metadata["name"], features, split)]
    rules.append(_rule(path, [], filters, backends, features, timeout))
    spec: dict[str, Any] = {"parentRefs": [_parent(parent) for parent in settings.parents]}
    if settings.hostnames:
        spec["hostnames"] = list(settings.hostnames)
    return {
        "apiVersion": f"{ROUTE_GROUP}/{features.route}",
        "kind": ROUTE_KIND,
        "metadata": dict(metadata),
        "spec": {**spec, "rules": rules},
    }


def metadata_of(namespace: str, service: str, uid: str) -> dict[str, Any]:
    """The metadata of an object of the whole service: the service's name, and the InferenceService as owner."""
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": service, "uid": uid, "controller": True,
             "blockOwnerDeletion": False}  # fmt: skip
    labels = {
        MANAGED_LABEL: MANAGED,
        NAME_LABEL: "pagefleet-route",
        SERVICE_LABEL: service,
    }
    return {"name": service, "namespace": namespace, "labels": labels, "ownerReferences": [owner]}


def hundredths(weights: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Round the shares to whole numbers that sum to 100, by largest remainders; exact when they do already.

    By Hamilton's method no share is off by one or more. A revision with weight 0, or with no part of a hundred, is left
    out.
    """
    total = sum(weight for _, weight in weights)
    if total <= 0:
        return ()
    exact = [Fraction(weight * 100, total) for _, weight in weights]
    floors = [int(share) for share in exact]
    by_remainder = sorted(range(len(weights)), key=lambda index: (floors[index] - exact[index], index))
    for index in by_remainder[: 100 - sum(floors)]:
        floors[index] += 1
    return tuple((name, share) for (name, _), share in zip(weights, floors, strict=True) if share)


def milliseconds(seconds: float) -> str:
    """Format a Gateway API duration (GEP-2257): whole numbers of at most five digits. 0.0015 s rounds up to 2 ms."""
    remaining, text = -int(-seconds * 1000 // 1), ""
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, remaining = divmod(remaining, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def _rule(
    path: str,
    headers: list[dict[str, str]],
    filters: list[dict[str, Any]],
    backends: list[dict[str, Any]],
    features: Features,
    timeout: float,
) -> dict[str, Any]:
    match: dict[str, Any] = {"path": {"type": "PathPrefix", "value": path}}
    if headers:
        match["headers"] = headers
    rule: dict[str, Any] = {"matches": [match]}
    if filters:
        rule["filters"] = filters
    rule["backendRefs"] = backends
    if features.timeouts:
        rule["timeouts"] = {"request": milliseconds(timeout)}
    return rule


def _unforged() -> dict[str, Any]:
    """The filter that removes the headers that engines believe, because our own gateway takes them from every client."""
    return {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": [CLIENT_HEADER, PREFILL_HEADER]}}


def _rewrite() -> dict[str, Any]:
    """The filter that rewrites a path to the engines' own."""
    path = {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/v1"}
    return {"type": "URLRewrite", "urlRewrite": {"path": path}}


def _mirrors(service: str, features: Features, split: TrafficSplit) -> list[dict[str, Any]]:
    """The filter that mirrors requests.

    It is left out when the schema has no field for the share: the gateway would then mirror every request.
    """
    if not split.mirror or not (features.mirror_share or split.mirror[1] >= 100):
        return []
    revision, percent = split.mirror
    mirror: dict[str, Any] = {"backendRef": _reference(service, revision)}
    if percent < 100:
        mirror |= _share(percent)
    return [{"type": "RequestMirror", "requestMirror": mirror}]


def _share(percent: float) -> dict[str, Any]:
    if percent == int(percent):
        return {"percent": int(percent)}
    exact = Fraction(str(percent)) / 100
    near = exact.limit_denominator(1_000_000)
    return {"fraction": {"numerator": near.numerator, "denominator": near.denominator}}


def _services(service: str, weights: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    return [_service(service, revision, weight) for revision, weight in hundredths(weights)]


def _service(service: str, revision: str, weight: int) -> dict[str, Any]:
    return {**_reference(service, revision), "weight": weight}


def _reference(service: str, revision: str) -> dict[str, Any]:
    # Without `group`: "" is its default, and an API server of 1.20 reads an empty text in a custom resource as null.
    return {"kind": "Service", "name": f"{service}-{revision}", "port": SERVICE_PORT}


def _pool(service: str) -> dict[str, Any]:
    return {"group": POOL_GROUP, "kind": POOL_KIND, "name": service, "weight": 1}


def _parent(parent: Parent) -> dict[str, Any]:
    reference: dict[str, Any] = {"group": parent.group, "kind": parent.kind, "name": parent.name}
    if parent.namespace:
        reference["namespace"] = parent.namespace
    if parent.section:
        reference["sectionName"] = parent.section
    if parent.port is not None:
        reference["port"] = parent.port
    return reference
