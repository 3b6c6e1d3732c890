"""What the gateway knows of the cluster: services and pods, and the immutable snapshot the picker reads.

`State` is fed by the watch (or by a test) and is the only mutable thing here; a snapshot never changes. It
decides nothing about a request and does no I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pagefleet_gateway.cluster.engines import OURS, Engine

ServiceKey = tuple[str, str]  # namespace, name


@dataclass(frozen=True)
class Limit:
    """What one value of a header (an API key, a tenant) may ask for in a minute; 0: as much as it likes."""

    header: str  # lower case; requests without it share one allowance
    requests_per_minute: int = 0
    tokens_per_minute: int = 0


@dataclass(frozen=True)
class Service:
    """The part of an InferenceService that routing needs."""

    namespace: str
    name: str
    served_name: str = ""
    weights: tuple[tuple[str, int], ...] = ()  # .status.traffic; empty: nothing serves yet
    canary: str = ""  # revision under test, "" when none
    canary_headers: tuple[tuple[str, str], ...] = ()  # lower-case name, exact value; all must match
    sticky_header: str = ""  # lower-case name of the header whose value keeps a client on one revision
    timeout_seconds: float | None = None
    retries: int = 2
    pod_limit: int = 0  # requests a pod may have in flight before others are held; 0: no limit
    hold_seconds: float = 0.0  # how long a request may be held; 0: never
    hold_requests: int = 256
    hold_bytes: int = 64 * 1024 * 1024
    tenant_header: str = ""  # lower case; whose value fairness between held requests goes by
    priorities: tuple[tuple[tuple[str, str], ...], ...] = ()  # most important first; header names lower case
    limits: tuple[Limit, ...] = ()
    fallback: str = ""  # service of the same namespace that answers when this one cannot
    mirror: tuple[str, float] = ("", 0.0)  # revision that gets a copy, and of how many requests in 100
    first_token_seconds: float | None = None  # how long a pod may take to a stream's first token, in each attempt
    next_token_seconds: float | None = None  # how long a stream may pause once it has begun

    def priority(self, headers: Mapping[str, str]) -> int:
        """The first class whose headers all match, 0 the most important; what matches none comes last."""
        for index, wanted in enumerate(self.priorities):
            if all(headers.get(name) == value for name, value in wanted):
                return index
        return len(self.priorities)

    @property
    def key(self) -> ServiceKey:
        return (self.namespace, self.name)


@dataclass(frozen=True)
class Pod:
    """An engine pod that has an address. `ready` is false as soon as it terminates or its Ready condition is
    not True. `silent`: it is not Ready only because nothing is heard of its node, for its containers were ready.
    """

    uid: str
    name: str
    namespace: str
    service: str
    revision: str
    address: str  # ip:port
    ready: bool = True
    engine: Engine = OURS
    silent: bool = False

    @property
    def may_answer(self) -> bool:
        return self.ready or self.silent


@dataclass(frozen=True)
class Snapshot:
    """One consistent view. `pods` holds only pods that may be sent a request now, by service and revision: those that
    are ready. Where none of the revisions that have traffic has one, those that are silent too: an API server that was away
    for a while marks the pods of every node so, one after another, and pods that do answer are better than an error for
    everybody.
    """

    services: Mapping[ServiceKey, Service] = field(default_factory=dict)
    by_model: Mapping[str, tuple[ServiceKey, ...]] = field(default_factory=dict)
    pods: Mapping[ServiceKey, Mapping[str, tuple[Pod, ...]]] = field(default_factory=dict)


class State:
    """The latest objects, by key. Writers call put/remove/replace; readers take `snapshot`.

    A pod enters the snapshot only after `confirm` has named it: Envoy must know its address before it is
    chosen. The snapshot is rebuilt when it is first read after a change, so a change is in force at the next
    request.
    """

    def __init__(self) -> None:
        self._services: dict[ServiceKey, Service] = {}
        self._pods: dict[str, Pod] = {}
        self._confirmed: frozenset[Pod] = frozenset()
        self._snapshot: Snapshot | None = None
        self.pods_changed = asyncio.Event()
        self.changed: Callable[[], None] = lambda: None  # called when the next snapshot will differ

    @property
    def snapshot(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = self._build()
        return self._snapshot

    @property
    def pods(self) -> tuple[Pod, ...]:
        """Every pod with an address, ready or not, confirmed or not."""
        return tuple(self._pods.values())

    def put_service(self, service: Service) -> None:
        if self._services.get(service.key) != service:
            self._services[service.key] = service
            self._moved()

    def remove_service(self, key: ServiceKey) -> None:
        if self._services.pop(key, None) is not None:
            self._moved()

    def replace_services(self, services: Iterable[Service]) -> None:
        self._services = {service.key: service for service in services}
        self._moved()

    def put_pod(self, pod: Pod) -> None:
        if self._pods.get(pod.uid) != pod:
            self._pods[pod.uid] = pod
            self._pods_moved()

    def remove_pod(self, uid: str) -> None:
        if self._pods.pop(uid, None) is not None:
            self._pods_moved()

    def replace_pods(self, pods: Iterable[Pod]) -> None:
        self._pods = {pod.uid: pod for pod in pods}
        self._pods_moved()

    def confirm(self, pods: Iterable[Pod]) -> None:
        """Envoy now knows exactly these pods."""
        self._confirmed = frozenset(_identity(pod) for pod in pods)
        self._moved()

    def _pods_moved(self) -> None:
        self.pods_changed.set()
        self._moved()

    def _moved(self) -> None:
        self._snapshot = None
        self.changed()

    def _build(self) -> Snapshot:
        by_model: dict[str, list[ServiceKey]] = {}
        for key, service in sorted(self._services.items()):
            if service.served_name:
                by_model.setdefault(service.served_name, []).append(key)
        pods: dict[ServiceKey, dict[str, list[Pod]]] = {}
        known = [pod for pod in self._pods.values() if pod.may_answer and _identity(pod) in self._confirmed]
        served = {(pod.namespace, pod.service) for pod in known if pod.ready and self._has_traffic(pod)}
        for pod in known:
            if pod.ready or (pod.namespace, pod.service) not in served:
                revisions = pods.setdefault((pod.namespace, pod.service), {})
                revisions.setdefault(pod.revision, []).append(pod)
        return Snapshot(
            services=dict(self._services),
            by_model={model: tuple(keys) for model, keys in by_model.items()},
            pods={key: {name: tuple(group) for name, group in by.items()} for key, by in pods.items()},
        )

    def _has_traffic(self, pod: Pod) -> bool:
        service = self._services.get((pod.namespace, pod.service))
        return service is not None and any(weight and revision == pod.revision for revision, weight in service.weights)


def _identity(pod: Pod) -> Pod:
    """The pod without its readiness, which Envoy is not told."""
    return pod if pod.ready else replace(pod, ready=True, silent=False)
