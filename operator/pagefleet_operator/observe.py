"""Reads everything that one decision needs: the object, its Deployments and pods, the measurements of engines, gateways
and Prometheus."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pagefleet_contract.addresses import EVERY_IPV4
from pagefleet_contract.engine_metrics import engine_of
from pagefleet_contract.model_name import served_name
from pagefleet_contract.names import ACTION_ANNOTATION, GATEWAY, KIND, NAME_LABEL, REVISION_LABEL
from pagefleet_contract.reflector import CHUNK
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.manifests import pod_fields
from pagefleet_operator.domain.manifests.load_test_job import job_name
from pagefleet_operator.domain.rollout import alerts
from pagefleet_operator.domain.spec import parse as spec
from pagefleet_operator.domain.spec.parse import Spec
from pagefleet_operator.domain.spec.policy import EVERYTHING, Policy
from pagefleet_operator.domain.spec.rollout import Guard
from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.gateway_api import GatewayApiReading
from pagefleet_operator.domain.status.model_names import NameReading, reading_of
from pagefleet_operator.domain.status.observation import (
    GateReading,
    LoadTestReading,
    Observation,
    PodReading,
    RevisionReading,
    Slice,
    SpareReading,
)
from pagefleet_operator.domain.status.records.slo import SLORecord
from pagefleet_operator.domain.status.status import Phase, Status
from pagefleet_operator.kube import gateway_api, group_members, leader_worker_sets, paths, readings
from pagefleet_operator.kube.client import FAILURES, Api, Document
from pagefleet_operator.kube.gateway_api import GatewayApis, RouteObjects
from pagefleet_operator.kube.leader_worker_sets import Groups
from pagefleet_operator.kube.records.reading import Records, announced
from pagefleet_operator.kube.store import ServiceKey, Store
from pagefleet_operator.kube.versions import Versions
from pagefleet_operator.metrics.accounts import Account, Accounts
from pagefleet_operator.metrics.engine_readings import EngineReading, EngineReadings, Unread
from pagefleet_operator.metrics.engine_windows import EngineWindows
from pagefleet_operator.metrics.gateway_windows import GatewayWindows, Own
from pagefleet_operator.metrics.history import Past
from pagefleet_operator.metrics.measuring import Measured, Measures
from pagefleet_operator.metrics.prometheus_windows import PrometheusWindows
from pagefleet_operator.metrics.promql_gates import PrometheusGates

log = logging.getLogger(__name__)
WORKLOADS = ("Deployment", "LeaderWorkerSet")
SYSTEM_GATEWAYS = f"{NAME_LABEL}={GATEWAY}"
GATEWAY_SECONDS = 2.0
JOB_NAME_LABEL = "job-name"
MAX_OWN_PICKERS = 16  # of a namespace: more replicas of a picker are not read


@dataclass(frozen=True)
class Sources:
    """The readers of measurements. `image` is the operator's own image, in which load tests run. Engines listen on
    `engine_address`. `policy` limits what specs may name."""

    engines: EngineReadings
    windows: GatewayWindows
    engine_windows: EngineWindows
    prometheus_windows: PrometheusWindows
    gates: PrometheusGates
    image: str
    engine_address: str = EVERY_IPV4
    policy: Policy = EVERYTHING


@dataclass(frozen=True)
class _Pods:
    """A service's pods. `workers` compute for a leader among `engines` and serve no requests themselves. `prefill` compute
    prompts for the decode pods among `engines`."""

    engines: list[Document]
    workers: list[Document]
    prefill: list[Document]

    @property
    def replicas(self) -> list[Document]:
        return [item for item in self.engines if not readings.is_spare(item)]

    @property
    def computing(self) -> list[Document]:
        """The replicas, and then the prefill pods."""
        return [*self.replicas, *self.prefill]

    @property
    def spares(self) -> list[Document]:
        return [item for item in self.engines if readings.is_spare(item)]


class Gatherer:
    """Makes Observations. `system` is the namespace in which operator and gateways run."""

    def __init__(self, api: Api, versions: Versions, store: Store, sources: Sources, system: str) -> None:
        self._api, self._store, self._sources, self._system = api, store, sources, system
        self._versions = versions
        self._engines, self._windows = sources.engines, sources.windows
        self._measure = Measures(sources.engine_windows, sources.prometheus_windows)
        self.routes = RouteObjects(api)
        self._gateway_apis, self._groups = GatewayApis(api, self.routes), Groups(api, versions, store)
        self._records = Records(api, store)
        self._past, self._accounts = Past(), Accounts()
        self._memos: dict[tuple[str, str], dict[str, object]] = {}
        self._gateway_pods: dict[str, tuple[float, list[str]]] = {}

    def service(self, namespace: str, name: str) -> Document | None:
        """The service as the watches have reported it."""
        return self._store.find(KIND, namespace, name)

    async def fresh(self, namespace: str, name: str) -> Document | None:
        """The service as the API server has it now."""
        return await self._api.find(paths.inference_service(namespace, name))

    async def observe(self, service: Document) -> Observation:
        """Read everything about one service.

        A measurement that cannot be read is None. When an alert decides by itself, nothing is measured: a gateway or an
        engine that does not answer must not delay a rollback. Raises ApiError or aiohttp.ClientError when the gateways
        cannot be listed.
        """
        metadata = service["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        raw, listed = service.get("spec") or {}, self._store.children("Pod", namespace, name)
        records = await self._records.read(service)
        grouped = leader_worker_sets.needed(raw, service.get("status") or {}, records, listed)
        served = await self._groups.read(namespace, name) if grouped else False
        asking = pod_fields.needed_by(raw, service.get("status") or {})
        dropped = await self._versions.dropped(asking, namespace) if asking else frozenset()
        workloads = [item for kind in WORKLOADS for item in self._store.children(kind, namespace, name)]
        pods = _pods(listed)
        routed = gateway_api.needed(raw, service.get("status") or {})
        status = codec.load(service.get("status"), codec.Parts.known(self._memos.get((namespace, name), {})))
        parsed = spec.parse(raw)
        guard = parsed.rollout.guard if isinstance(parsed, Spec) else None
        urgent = alerts.decides(status, raw, parsed.rollout if isinstance(parsed, Spec) else None)
        in_use = bool(status.canary) or status.rollout.phase is Phase.WATCHING
        watched = isinstance(parsed, Spec) and parsed.rollout.watch_limits is not None
        promised = isinstance(parsed, Spec) and bool(parsed.slo.objectives)
        planned = isinstance(parsed, Spec) and parsed.capacity_plan is not None
        judged = in_use and not urgent
        account = self._accounts.open((namespace, name), len(pods.engines) + len(pods.prefill))
        if not in_use:
            self._measure.forget(namespace, name)
        if not in_use and not watched:
            self._memos.pop((namespace, name), None)
        pod_readings, spare_readings, slices, measured, gates, load_test = await asyncio.gather(
            asyncio.gather(*(self._read(item, pods.workers, urgent, account) for item in pods.computing)),
            asyncio.gather(*(self._spare(item, urgent, account) for item in pods.spares)),
            self._slices((namespace, name), account if routed else None, status.slo, judged=judged)
            if judged or ((watched or promised or planned or _scales_by_load(raw)) and not urgent)
            else _none(),
            self._measure.read(parsed.rollout, pods.engines, status, (namespace, name), account)
            if judged and isinstance(parsed, Spec)
            else _no_measurements(),
            self._gates(guard, status, namespace, name) if judged and guard is not None else _no_gates(),
            self._load_test(namespace, name, metadata["uid"], status),
        )
        return Observation(
            namespace=namespace,
            name=name,
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            spec=raw,
            status=status,
            revisions=self._past.remembered(
                (namespace, name), _revisions(workloads, pods, pod_readings, spare_readings), time.time()
            ),
            slices=slices,
            earlier=self._windows.earlier(namespace, name) if judged else {},
            gateway_api=await self._read_gateway_api(namespace, name, metadata.get("resourceVersion", ""))
            if routed
            else None,
            fallbacks=gateway_api.fallbacks(self.service, namespace, name, raw),
            model_name=self._model_name(service),
            refused=self._store.refused((namespace, name)),
            engine_slices=measured.engine,
            prometheus=measured.prometheus,
            silence=measured.silence,
            gates=gates,
            load_test=load_test,
            action=(metadata.get("annotations") or {}).get(ACTION_ANNOTATION, ""),
            image=self._sources.image,
            engine_address=self._sources.engine_address,
            policy=self._sources.policy,
            load=self._windows.load(namespace, name),
            slo=self._windows.attained(namespace, name) if promised else None,
            memo=self._memos.setdefault((namespace, name), {}) if in_use or watched else {},
            groups=served,
            dropped=dropped,
            created=readings.seconds(metadata["creationTimestamp"]),
            records=records,
            announced_records=announced(metadata),
        )

    def _model_name(self, service: Document) -> NameReading:
        name, metadata = served_name(service), service["metadata"]
        own = (metadata["namespace"], metadata["name"])
        keys = [key for key in self._store.serving(name) if key != own] if name else []
        return reading_of(service, name, (self._store.find(KIND, *key) for key in keys))

    def forget(self, namespace: str, name: str) -> None:
        """The service is gone."""
        self._windows.forget(namespace, name)
        self._measure.forget(namespace, name)
        self._past.forget((namespace, name))
        self._accounts.forget((namespace, name))
        self._memos.pop((namespace, name), None)

    async def _read(self, item: Document, workers: list[Document], urgent: bool, account: Account) -> PodReading:
        pod = group_members.with_fault_of_workers(readings.pod(item), item, workers, time.time())
        address = (item.get("status") or {}).get("podIP")
        if urgent or pod.terminating or not address:
            return pod
        if pod.fetching:
            return replace(pod, fetch=await self._engines.fetching(address, engine_of(item).port, account))
        if not pod.ready:
            return pod
        return _loaded(pod, await self._engines.read(address, engine_of(item), account))

    async def _spare(self, item: Document, urgent: bool, account: Account) -> SpareReading:
        """Read a spare. Its engine answers while it sleeps, although the pod is not ready."""
        spare = readings.spare(item)
        if urgent or spare.pod.terminating or not spare.address:
            return spare
        reading = await self._engines.read(spare.address, engine_of(item), account)
        pod = _loaded(spare.pod, reading) if spare.pod.ready else spare.pod
        return replace(spare, pod=pod, asleep=reading.sleeping if isinstance(reading, EngineReading) else None)

    async def _read_gateway_api(self, namespace: str, name: str, version: str) -> GatewayApiReading | None:
        try:
            return await self._gateway_apis.read(namespace, name, version)
        except FAILURES as error:  # only these kinds are concerned: the rest of the decision goes on
            cause = error or type(error).__name__
            log.warning("%s/%s: the Gateway API's kinds cannot be read: %s", namespace, name, cause)
            return None

    async def _slices(
        self, key: ServiceKey, own: Account | None, recorded: SLORecord | None, *, judged: bool
    ) -> tuple[Slice, ...] | None:
        """Read the gateways' windows. `own` is the account of a service with provider GatewayAPI: gateways in its own
        namespace measure too, because an InferencePool's picker runs there."""
        addresses, pickers = await self._gateways(self._system), Own()
        if own is not None and key[0] != self._system:
            pickers = Own(tuple(await self._gateways(key[0])), own)
        return await self._windows.read(addresses, *key, judged=judged, own=pickers, recorded=recorded)

    async def gateways(self) -> list[str]:
        """Addresses of the system's gateway pods. Raises ApiError or aiohttp.ClientError."""
        return await self._gateways(self._system)

    async def _gateways(self, namespace: str) -> list[str]:
        """Addresses of gateway pods, listed at most every GATEWAY_SECONDS: every service's decision needs the same ones."""
        cached = self._gateway_pods.get(namespace)
        if cached is not None and time.monotonic() - cached[0] < GATEWAY_SECONDS:
            return cached[1]
        path = paths.collection("v1", "Pod", namespace)
        listed = await self._api.get(path, labelSelector=SYSTEM_GATEWAYS, limit=str(CHUNK))
        # An evicted pod keeps its address, which another pod may have by now.
        items = [item for item in listed.get("items") or () if not readings.has_ended(item)]
        if namespace != self._system:
            items = [item for item in items if readings.is_installed_gateway(item)][:MAX_OWN_PICKERS]
        addresses = [
            item["status"]["podIP"]
            for item in items
            if (item.get("status") or {}).get("podIP") and "deletionTimestamp" not in item["metadata"]
        ]
        self._gateway_pods[namespace] = (time.monotonic(), addresses)
        return addresses

    async def _gates(self, guard: Guard, status: Status, namespace: str, name: str) -> dict[str, GateReading]:
        canary = status.canary or status.stable
        names = {"namespace": namespace, "service": name, "stable": status.stable, "canary": canary}
        return await self._sources.gates.read(guard.gates, names)

    async def _load_test(self, namespace: str, name: str, uid: str, status: Status) -> LoadTestReading | None:
        if status.rollout.phase is not Phase.LOAD_TEST:
            return None
        child = Child(namespace, name, uid, status.canary, {})
        own = job_name(child, status.rollout.since)
        job = await self._api.find(paths.named("batch/v1", "Job", namespace, own))
        pods = paths.collection("v1", "Pod", namespace)
        listed = await self._api.get(pods, labelSelector=f"{JOB_NAME_LABEL}={own}") if job else {}
        return readings.load_test(job, listed.get("items") or ())


def _loaded(pod: PodReading, reading: EngineReading | Unread) -> PodReading:
    if isinstance(reading, EngineReading):
        return replace(pod, load=reading.load, load_age=0.0)
    if reading.last is None:
        return replace(pod, load_error=reading.cause)
    return replace(pod, load=reading.last.load, load_age=reading.age, load_error=reading.cause)


def _pods(listed: Iterable[Document]) -> _Pods:
    present = [item for item in listed if not readings.has_ended(item)]
    labelled = [item for item in present if (item["metadata"].get("labels") or {}).get(REVISION_LABEL)]
    workers = [item for item in labelled if group_members.is_worker(item)]
    prefill = [item for item in labelled if readings.is_prefill(item)]
    others = [item for item in labelled if not readings.is_prefill(item)]
    return _Pods([item for item in others if not group_members.is_worker(item)], workers, prefill)


def _revisions(
    workloads: list[Document], pods: _Pods, computing: list[PodReading], spares: list[SpareReading]
) -> dict[str, RevisionReading]:
    """Readings by revision. `computing` are the readings of `pods.computing`, `spares` those of `pods.spares`."""
    replicas, prefill = computing[: len(pods.replicas)], computing[len(pods.replicas) :]
    owners = {item["metadata"]["name"]: readings.revision_of(item) for item in pods.replicas}
    of_spares = [item for item in workloads if readings.is_spare(item)]
    of_prefill = [item for item in workloads if readings.is_prefill(item)]
    own = [item for item in workloads if not (readings.is_spare(item) or readings.is_prefill(item))]
    serving = readings.revisions(own, replicas, owners)
    spared = readings.with_spares(serving, of_spares, zip(map(readings.revision_of, pods.spares), spares, strict=True))
    owned = zip(map(readings.revision_of, pods.prefill), prefill, strict=True)
    return readings.with_prefill(spared, of_prefill, owned)


async def _none() -> None:
    return None


async def _no_measurements() -> Measured:
    return Measured()


async def _no_gates() -> dict[str, GateReading]:
    return {}


def _scales_by_load(spec: object) -> bool:
    """Whether the number of replicas follows the load, so that the gateways' measurements are needed."""
    scaling = (spec.get("scaling") if isinstance(spec, dict) else None) or {}
    if not isinstance(scaling, dict):
        return False
    return "idleToZero" in scaling or scaling.get("max", 1) != scaling.get("min", 1)
