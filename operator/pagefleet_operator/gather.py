"""Reads everything one decision needs: the object, its Deployments and pods, the engines' and the gateways' numbers."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from pagefleet_operator.cluster import gatewayapi, paths, readings
from pagefleet_operator.cluster.api import Api, ApiError, Document
from pagefleet_operator.cluster.gatewayapi import GatewayApis
from pagefleet_operator.domain import status_json
from pagefleet_operator.domain.build.names import REVISION_LABEL, SERVICE_LABEL
from pagefleet_operator.domain.gatewayapi import GatewayApiReading
from pagefleet_operator.domain.observation import Observation, PodReading, Slice
from pagefleet_operator.signals.engine import EngineSignals
from pagefleet_operator.signals.windows import GatewayWindows

log = logging.getLogger(__name__)
SYSTEM_GATEWAYS = "app.kubernetes.io/name=pagefleet-gateway"


class Gatherer:
    """`system` is the namespace that operator and gateways run in."""

    def __init__(self, api: Api, engines: EngineSignals, windows: GatewayWindows, system: str) -> None:
        self._api, self._engines, self._windows, self._system = api, engines, windows, system
        self._gateway_apis = GatewayApis(api)

    async def service(self, namespace: str, name: str) -> Document | None:
        return await self._api.find(paths.inference_service(namespace, name))

    async def observe(self, service: Document) -> Observation:
        """Raises ApiError or aiohttp.ClientError when the API server does not answer; signals only turn None."""
        metadata = service["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        selector = f"{SERVICE_LABEL}={name}"
        deployments, pods = await asyncio.gather(
            self._api.get(paths.collection("apps/v1", "Deployment", namespace), labelSelector=selector),
            self._api.get(paths.collection("v1", "Pod", namespace), labelSelector=selector),
        )
        items = [item for item in pods.get("items") or () if (item["metadata"].get("labels") or {}).get(REVISION_LABEL)]
        status, spec = status_json.load(service.get("status")), service.get("spec") or {}
        routed = gatewayapi.wanted(spec, service.get("status") or {})
        measured, slices = await asyncio.gather(
            asyncio.gather(*(self._read(item) for item in items)),
            self._slices(namespace, name, own_pickers=routed) if status.canary else _none(),
        )
        owners = {item["metadata"]["name"]: readings.revision_of(item) for item in items}
        return Observation(
            namespace=namespace,
            name=name,
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            spec=spec,
            status=status,
            revisions=readings.revisions(deployments.get("items") or (), measured, owners),
            slices=slices,
            gateway_api=await self._read_gateway_api(namespace, name) if routed else None,
            fallbacks=await self._gateway_apis.fallbacks(namespace, name, spec),
        )

    def forget(self, namespace: str, name: str) -> None:
        """The service is gone."""
        self._windows.forget(namespace, name)

    async def _read(self, item: Document) -> PodReading:
        pod, address = readings.pod(item), (item.get("status") or {}).get("podIP")
        if not pod.ready or pod.terminating or not address:
            return pod
        signals = await self._engines.read(address)
        if signals is None:
            return pod
        return replace(
            pod,
            waiting=signals.waiting,
            running=signals.running,
            free_pages=signals.free_pages,
            total_pages=signals.total_pages,
            signals_age=signals.age,
        )

    async def _read_gateway_api(self, namespace: str, name: str) -> GatewayApiReading | None:
        try:
            return await self._gateway_apis.read(namespace, name)
        except ApiError as error:  # of these kinds only: what else the service needs goes on
            log.warning("%s/%s: the Gateway API's kinds cannot be read: %s", namespace, name, error)
            return None

    async def _slices(self, namespace: str, name: str, *, own_pickers: bool) -> tuple[Slice, ...] | None:
        """An InferencePool's picker is in its own namespace, so with provider GatewayAPI gateways there measure too."""
        addresses: list[str] = []
        for place in sorted({self._system, namespace} if own_pickers else {self._system}):
            listed = await self._api.get(paths.collection("v1", "Pod", place), labelSelector=SYSTEM_GATEWAYS)
            addresses += [
                item["status"]["podIP"]
                for item in listed.get("items") or ()
                if (item.get("status") or {}).get("podIP") and "deletionTimestamp" not in item["metadata"]
            ]
        return await self._windows.read(addresses, namespace, name)


async def _none() -> None:
    return None
