"""Reads the Gateway API: which of its kinds the cluster serves (from their CRDs, read at most every half minute), a
service's live HTTPRoute and InferencePool, and the chain of its fallbacks. Nothing is written here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from pagefleet_contract.model_name import served_name
from pagefleet_contract.names import is_object_name
from pagefleet_operator.domain.status.gateway_api import (
    POOL_GROUP,
    POOL_KIND,
    ROUTE_GROUP,
    ROUTE_KIND,
    FallbackReading,
    Features,
    GatewayApiReading,
    LiveObject,
    ParentStatus,
)
from pagefleet_operator.kube import paths
from pagefleet_operator.kube.client import Api, Document
from pagefleet_operator.kube.store import ServiceKey

ROUTE_VERSIONS, POOL_VERSION = ("v1", "v1beta1"), "v1"
FEATURE_SECONDS, SETTLED_SECONDS = 30.0, 30.0
MAX_SETTLED, MAX_OBJECTS = 10_000, 20_000
MAX_CHAIN = 8
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class RouteObjects:
    """The HTTPRoutes and InferencePools by path, as they were last read or written; None for one that does not exist.

    Nobody watches them, because a cluster need not serve their kinds. A decision reads them, at most every SETTLED_SECONDS
    for a settled service, and its writes are compared with what was read. A write names that resourceVersion, so an object
    that has moved on meanwhile is read again and never overwritten unseen.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[str, tuple[float, Document | None]] = {}

    async def read(self, path: str) -> Document | None:
        """Return the object as the API server has it now. Raises ApiError or aiohttp.ClientError."""
        document = await self._api.find(path)
        self.store(path, document)
        return document

    async def current(self, path: str) -> Document | None:
        """Return the object as it is known, read again after SETTLED_SECONDS. Raises ApiError or aiohttp.ClientError."""
        known = self._known.get(path)
        if known is not None and time.monotonic() - known[0] < SETTLED_SECONDS:
            return known[1]
        return await self.read(path)

    def store(self, path: str, document: Document | None) -> None:
        if len(self._known) >= MAX_OBJECTS:
            self._known.clear()
        self._known[path] = (time.monotonic(), document)

    def forget(self, path: str) -> None:
        """Have the object read again: the API server contradicted what is known, or it is being deleted."""
        self._known.pop(path, None)


class GatewayApis:
    """Raises ApiError or aiohttp.ClientError when the API server does not answer."""

    def __init__(self, api: Api, objects: RouteObjects) -> None:
        self._api, self._objects = api, objects
        self._features, self._read = Features(), float("-inf")
        self._settled: dict[ServiceKey, tuple[str, float, GatewayApiReading]] = {}

    async def read(self, namespace: str, name: str, version: str) -> GatewayApiReading:
        """The reading of a service whose resourceVersion is `version`. While that one and the route are settled, the objects
        are read at most every SETTLED_SECONDS: a thousand idle services ask for nothing twice a second."""
        key, now = (namespace, name), time.monotonic()
        if (known := self._settled.get(key)) and known[0] == version and now - known[1] < SETTLED_SECONDS:
            return known[2]
        features = await self._served()
        route = await self._live(ROUTE_GROUP, features.route, ROUTE_KIND, namespace, name)
        pool = await self._live(POOL_GROUP, features.pool, POOL_KIND, namespace, name)
        reading = GatewayApiReading(features, route, pool)
        self._settled.pop(key, None)
        if is_settled(reading):
            if len(self._settled) >= MAX_SETTLED:
                self._settled.clear()
            self._settled[key] = (version, now, reading)
        return reading

    async def _served(self) -> Features:
        if time.monotonic() - self._read > FEATURE_SECONDS:
            route = await self._api.find(f"{CRDS}/httproutes.{ROUTE_GROUP}")
            pool = await self._api.find(f"{CRDS}/inferencepools.{POOL_GROUP}")
            self._features, self._read = features(route, pool), time.monotonic()
        return self._features

    async def _live(self, group: str, version: str, kind: str, namespace: str, name: str) -> LiveObject | None:
        if not version:
            return None
        document = await self._objects.read(paths.named(f"{group}/{version}", kind, namespace, name))
        return None if document is None else live(document, "parents")


def fallbacks(
    find: Callable[[str, str], Document | None], namespace: str, name: str, spec: Mapping[str, Any]
) -> tuple[FallbackReading, ...]:
    """The chain from the service's own fallback on, until it ends, repeats a name or is too long. `find` returns a service as
    the watches have reported it."""
    chain: list[FallbackReading] = []
    following, known = fallback_of(spec), {name}
    while following and len(chain) < MAX_CHAIN:
        chain.append(fallback(following, find(namespace, following)))
        if following in known:
            break
        known.add(following)
        following = chain[-1].fallback
    return tuple(chain)


def is_settled(reading: GatewayApiReading) -> bool:
    """Whether there is a route that every Gateway has accepted as it is now, so that nothing is awaited from outside."""
    route = reading.route
    if route is None or not route.parent_statuses:
        return False
    return all(
        entry.accepted and entry.resolved and entry.observed_generation in (None, route.generation)
        for entry in route.parent_statuses
    )


def features(route: Document | None, pool: Document | None) -> Features:
    """What the two CRDs offer. None stands for a CRD that is not installed."""
    served = _versions(route)
    version = next((known for known in ROUTE_VERSIONS if known in served), "")
    rule = _at(served.get(version), "spec", "rules") if version else {}
    mirror = _at(rule, "filters", "requestMirror")
    return Features(
        route=version,
        pool=POOL_VERSION if _at(_versions(pool).get(POOL_VERSION), "spec", "endpointPickerRef") else "",
        timeouts=bool(_at(rule, "timeouts", "request")),
        mirror_share=bool(_at(mirror, "percent") and _at(mirror, "fraction")),
    )


def _versions(crd: Document | None) -> dict[str, Mapping[str, Any]]:
    """The schema of each version that is served; empty until the API server has established the CRD."""
    if crd is None or not any(
        entry.get("type") == "Established" and entry.get("status") == "True"
        for entry in (crd.get("status") or {}).get("conditions") or ()
    ):
        return {}
    return {
        entry["name"]: (entry.get("schema") or {}).get("openAPIV3Schema") or {}
        for entry in crd["spec"].get("versions") or ()
        if entry.get("served")
    }


def _at(schema: Mapping[str, Any] | None, *names: str) -> Mapping[str, Any]:
    """The schema of a field, or of a list's entries where the field is a list; empty where there is no such field."""
    part: Mapping[str, Any] = schema or {}
    for name in names:
        part = (part.get("properties") or {}).get(name) or {}
        part = part.get("items") or part
    return part


def live(document: Document, parents: str) -> LiveObject:
    """`parents` is the field of the status that holds one entry for each Gateway."""
    metadata = document["metadata"]
    owner = next((o["uid"] for o in metadata.get("ownerReferences") or () if o.get("controller")), "")
    entries = (document.get("status") or {}).get(parents) or ()
    return LiveObject(
        name=metadata["name"],
        uid=metadata["uid"],
        owner=owner,
        generation=metadata.get("generation", 0),
        parent_statuses=tuple(_answer(entry) for entry in entries if isinstance(entry, Mapping)),
    )


def _answer(entry: Mapping[str, Any]) -> ParentStatus:
    parent = entry.get("parentRef") or {}
    conditions = {c["type"]: c for c in entry.get("conditions") or () if "type" in c}
    accepted, resolved = conditions.get("Accepted"), conditions.get("ResolvedRefs")
    bad: Mapping[str, Any] = next((c for c in (accepted, resolved) if c and c.get("status") == "False"), {})
    observed = [c["observedGeneration"] for c in (accepted, resolved) if c and "observedGeneration" in c]
    return ParentStatus(
        parent=parent.get("name", ""),
        namespace=parent.get("namespace", ""),
        section=parent.get("sectionName", ""),
        port=parent.get("port"),
        observed_generation=min(observed, default=None),
        accepted=_truth(accepted),
        resolved=_truth(resolved),
        reason=bad.get("reason", ""),
        message=bad.get("message", ""),
    )


def _truth(condition: Mapping[str, Any] | None) -> bool | None:
    return {"True": True, "False": False}.get((condition or {}).get("status", ""))


def needed(spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether the service asks for a route or had one."""
    traffic = spec.get("traffic")
    provider = traffic.get("provider") if isinstance(traffic, Mapping) else None
    return provider == "GatewayAPI" or "route" in status


def fallback_of(spec: Mapping[str, Any]) -> str:
    """The service's fallback, "" without one. Total: the spec may be of any shape."""
    traffic = spec.get("traffic")
    given = traffic.get("fallback") if isinstance(traffic, Mapping) else None
    service = given.get("service") if isinstance(given, Mapping) else None
    return service if isinstance(service, str) and is_object_name(service) else ""


def fallback(name: str, document: Document | None) -> FallbackReading:
    if document is None:
        return FallbackReading(name, exists=False)
    fallback = fallback_of(document.get("spec") or {})
    return FallbackReading(name, exists=True, served_name=served_name(document), fallback=fallback)
