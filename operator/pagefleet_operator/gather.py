"""Reads everything one decision needs: the object, its Deployments and pods, the engines' and the gateways' numbers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pagefleet_operator.cluster import paths, readings
from pagefleet_operator.cluster.api import Api, Document
from pagefleet_operator.cluster.store import Store
from pagefleet_operator.domain import status_json
from pagefleet_operator.domain.build.names import KIND, REVISION_LABEL
from pagefleet_operator.domain.observation import Observation, PodReading, Slice
from pagefleet_operator.signals.engine import EngineSignals
from pagefleet_operator.signals.windows import GatewayWindows

SYSTEM_GATEWAYS = "app.kubernetes.io/name=pagefleet-gateway"


class Gatherer:
    """`system` is the namespace that operator and gateways run in."""

    def __init__(self, api: Api, store: Store, engines: EngineSignals, windows: GatewayWindows, system: str) -> None:
        self._api, self._store, self._engines, self._windows, self._system = api, store, engines, windows, system

    def service(self, namespace: str, name: str) -> Document | None:
        """As the watches know it."""
        return self._store.find(KIND, namespace, name)

    async def fresh(self, namespace: str, name: str) -> Document | None:
        """As the API server has it."""
        return await self._api.find(paths.inference_service(namespace, name))

    async def observe(self, service: Document) -> Observation:
        """Raises ApiError or aiohttp.ClientError when gateways cannot be listed; signals only turn None."""
        metadata = service["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        pods = self._store.children("Pod", namespace, name)
        items = [item for item in pods if (item["metadata"].get("labels") or {}).get(REVISION_LABEL)]
        status = status_json.load(service.get("status"))
        measured, slices = await asyncio.gather(
            asyncio.gather(*(self._read(item) for item in items)),
            self._slices(namespace, name) if status.canary else _none(),
        )
        owners = {item["metadata"]["name"]: readings.revision_of(item) for item in items}
        return Observation(
            namespace=namespace,
            name=name,
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            spec=service.get("spec") or {},
            status=status,
            revisions=readings.revisions(self._store.children("Deployment", namespace, name), measured, owners),
            slices=slices,
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

    async def _slices(self, namespace: str, name: str) -> tuple[Slice, ...] | None:
        path = paths.collection("v1", "Pod", self._system)
        listed = await self._api.get(path, labelSelector=SYSTEM_GATEWAYS)
        addresses = [
            item["status"]["podIP"]
            for item in listed.get("items") or ()
            if (item.get("status") or {}).get("podIP") and "deletionTimestamp" not in item["metadata"]
        ]
        return await self._windows.read(addresses, namespace, name)


async def _none() -> None:
    return None
