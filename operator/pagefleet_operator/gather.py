"""Reads everything one decision needs: the object, its Deployments and pods, the engines' and the gateways' numbers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from pagefleet_operator.cluster import paths, readings
from pagefleet_operator.cluster.api import Api, Document
from pagefleet_operator.domain import status_json
from pagefleet_operator.domain.build.names import REVISION_LABEL, SERVICE_LABEL
from pagefleet_operator.domain.observation import Observation, PodReading, Slice
from pagefleet_operator.signals.engine import EngineSignals
from pagefleet_operator.signals.past import Past
from pagefleet_operator.signals.windows import GatewayWindows

SYSTEM_GATEWAYS = "app.kubernetes.io/name=pagefleet-gateway"


class Gatherer:
    """`system` is the namespace that operator and gateways run in."""

    def __init__(self, api: Api, engines: EngineSignals, windows: GatewayWindows, system: str) -> None:
        self._api, self._engines, self._windows, self._system = api, engines, windows, system
        self._past = Past()

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
        status = status_json.load(service.get("status"))
        measured, slices = await asyncio.gather(
            asyncio.gather(*(self._read(item) for item in items)),
            self._slices(namespace, name) if status.canary or _by_load(service.get("spec")) else _none(),
        )
        owners = {item["metadata"]["name"]: readings.revision_of(item) for item in items}
        return Observation(
            namespace=namespace,
            name=name,
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            spec=service.get("spec") or {},
            status=status,
            revisions=self._past.remembered(
                (namespace, name), readings.revisions(deployments.get("items") or (), measured, owners), time.time()
            ),
            slices=slices,
            load=self._windows.load(namespace, name),
        )

    def forget(self, namespace: str, name: str) -> None:
        """The service is gone."""
        self._windows.forget(namespace, name)
        self._past.forget((namespace, name))

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
            cached_pages=signals.cached_pages,
            waiting_tokens=signals.waiting_tokens,
            preemptions=signals.rates.get("preemptions"),
            tokens=signals.rates.get("tokens"),
        )

    async def _slices(self, namespace: str, name: str) -> tuple[Slice, ...] | None:
        return await self._windows.read(await self.gateways(), namespace, name)

    async def gateways(self) -> list[str]:
        """Addresses of the gateway pods. Raises ApiError or aiohttp.ClientError."""
        path = paths.collection("v1", "Pod", self._system)
        listed = await self._api.get(path, labelSelector=SYSTEM_GATEWAYS)
        return [
            item["status"]["podIP"]
            for item in listed.get("items") or ()
            if (item.get("status") or {}).get("podIP") and "deletionTimestamp" not in item["metadata"]
        ]


def _by_load(spec: object) -> bool:
    """Whether the replicas follow the load, so that what the gateways measure is asked for."""
    scaling = (spec.get("scaling") if isinstance(spec, dict) else None) or {}
    if not isinstance(scaling, dict):
        return False
    return "idleToZero" in scaling or scaling.get("max", 1) != scaling.get("min", 1)


async def _none() -> None:
    return None
