"""Reads the Gateway API's kinds: which the cluster serves (from their CRDs, asked at most every half minute), a service's
live HTTPRoute and InferencePool, and the chain of its fallbacks. Writes nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pagefleet_operator.domain.status.gateway_api import (
    POOL_GROUP,
    POOL_KIND,
    ROUTE_GROUP,
    ROUTE_KIND,
    Answer,
    FallbackReading,
    Features,
    GatewayApiReading,
    Live,
)
from pagefleet_operator.kube import paths
from pagefleet_operator.kube.client import Api, Document

ROUTE_VERSIONS, POOL_VERSION = ("v1", "v1beta1"), "v1"
FEATURE_SECONDS = 30.0
LONGEST_CHAIN = 8
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class GatewayApis:
    """Raises ApiError or aiohttp.ClientError when the API server does not answer."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._features, self._read = Features(), float("-inf")

    async def read(self, namespace: str, name: str) -> GatewayApiReading:
        features = await self._served()
        route = await self._live(ROUTE_GROUP, features.route, ROUTE_KIND, namespace, name)
        pool = await self._live(POOL_GROUP, features.pool, POOL_KIND, namespace, name)
        return GatewayApiReading(features, route, pool)

    async def fallbacks(self, namespace: str, name: str, spec: Mapping[str, Any]) -> tuple[FallbackReading, ...]:
        """The chain from the service's own fallback on, until it ends, repeats a name or is too long."""
        chain: list[FallbackReading] = []
        following, met = fallback_of(spec), {name}
        while following and len(chain) < LONGEST_CHAIN:
            found = await self._api.find(paths.inference_service(namespace, following))
            chain.append(fallback(following, found))
            if following in met:
                break
            met.add(following)
            following = chain[-1].fallback
        return tuple(chain)

    async def _served(self) -> Features:
        if time.monotonic() - self._read > FEATURE_SECONDS:
            route = await self._api.find(f"{CRDS}/httproutes.{ROUTE_GROUP}")
            pool = await self._api.find(f"{CRDS}/inferencepools.{POOL_GROUP}")
            self._features, self._read = features(route, pool), time.monotonic()
        return self._features

    async def _live(self, group: str, version: str, kind: str, namespace: str, name: str) -> Live | None:
        if not version:
            return None
        found = await self._api.find(f"{paths.collection(f'{group}/{version}', kind, namespace)}/{name}")
        return None if found is None else live(found, "parents")


def features(route: Document | None, pool: Document | None) -> Features:
    """From the two CRDs; None: not installed."""
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
    """The schema of each version that is served; none before the API server has taken the CRD up."""
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
    """The schema of a field; of a list's entries where it is a list. Empty when there is no such field."""
    found: Mapping[str, Any] = schema or {}
    for name in names:
        found = (found.get("properties") or {}).get(name) or {}
        found = found.get("items") or found
    return found


def live(document: Document, parents: str) -> Live:
    """`parents` is the field of the status that holds one entry for each Gateway."""
    metadata = document["metadata"]
    owner = next((o["uid"] for o in metadata.get("ownerReferences") or () if o.get("controller")), "")
    entries = (document.get("status") or {}).get(parents) or ()
    return Live(
        name=metadata["name"],
        uid=metadata["uid"],
        owner=owner,
        generation=metadata.get("generation", 0),
        answers=tuple(_answer(entry) for entry in entries if isinstance(entry, Mapping)),
    )


def _answer(entry: Mapping[str, Any]) -> Answer:
    parent = entry.get("parentRef") or {}
    conditions = {c["type"]: c for c in entry.get("conditions") or () if "type" in c}
    accepted, resolved = conditions.get("Accepted"), conditions.get("ResolvedRefs")
    bad: Mapping[str, Any] = next((c for c in (accepted, resolved) if c and c.get("status") == "False"), {})
    observed = [c["observedGeneration"] for c in (accepted, resolved) if c and "observedGeneration" in c]
    return Answer(
        parent=parent.get("name", ""),
        namespace=parent.get("namespace", ""),
        section=parent.get("sectionName", ""),
        port=parent.get("port"),
        observed=min(observed, default=None),
        accepted=_told(accepted),
        resolved=_told(resolved),
        reason=bad.get("reason", ""),
        message=bad.get("message", ""),
    )


def _told(condition: Mapping[str, Any] | None) -> bool | None:
    return {"True": True, "False": False}.get((condition or {}).get("status", ""))


def wanted(spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether the service has, or had, a route."""
    traffic = spec.get("traffic")
    provider = traffic.get("provider") if isinstance(traffic, Mapping) else None
    return provider == "GatewayAPI" or "route" in status


def fallback_of(spec: Mapping[str, Any]) -> str:
    """The service's fallback, "" without one. Total: the spec may be of any shape."""
    traffic = spec.get("traffic")
    told = traffic.get("fallback") if isinstance(traffic, Mapping) else None
    service = told.get("service") if isinstance(told, Mapping) else None
    return service if isinstance(service, str) and paths.is_name(service) else ""


def fallback(name: str, document: Document | None) -> FallbackReading:
    if document is None:
        return FallbackReading(name, exists=False)
    spec = document.get("spec") or {}
    model = spec.get("model")
    served = model.get("servedName", "") if isinstance(model, Mapping) else ""
    return FallbackReading(name, exists=True, served_name=str(served), fallback=fallback_of(spec))
