"""The cluster as the gateway knows it: services and pods, and the immutable snapshot that the picker reads.

The watch (or a test) feeds `State`, the only mutable object here; a snapshot never changes. Decides nothing about a request
and does no I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from pagefleet_contract.headers import is_background
from pagefleet_contract.slo import Objective
from pagefleet_gateway.cluster.engines import OWN_ENGINE, Engine

ServiceKey = tuple[str, str]  # namespace, name
OBJECTIVE_HEADER = "x-gateway-inference-objective"  # clients of our own Envoy cannot send it


@dataclass(frozen=True)
class RateLimit:
    """The allowance of one value of a header (an API key, a tenant); 0: no limit."""

    header: str  # lower case; requests without it share one allowance
    requests_per_minute: int = 0
    tokens_per_minute: int = 0


@dataclass(frozen=True)
class QueueBounds:
    """What may wait of one class of a service, in all gateway pods together. The bounds of the service's queue hold besides."""

    seconds: float | None = None  # how long a request may wait; None: as long as any request of the service
    requests: int = 0  # 0: no bound of its own
    bytes: int = 0  # 0: no bound of its own


NO_QUEUE_BOUNDS = QueueBounds()


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
    pod_limit: int = 0  # requests a pod may have in flight, of all gateways, before others are held; 0: no limit
    hold_seconds: float = 0.0  # how long a request may be held; 0: never
    hold_requests: int = 256
    hold_bytes: int = 64 * 1024 * 1024
    tenant_header: str = ""  # lower case; held requests are queued fairly between its values
    priorities: tuple[tuple[tuple[str, str], ...], ...] = ()  # most important first; header names lower case
    priority_names: tuple[str, ...] = ()  # of the same classes
    priority_bounds: tuple[QueueBounds, ...] = ()  # of the same classes
    shed: tuple[str, ...] = ()  # names of classes that the operator has given up for spec.cost.budget
    shed_for_slo: tuple[str, ...] = ()  # and for a promise of spec.slo that is about to break
    slo_output_tokens: int = 0  # new tokens that an answer may have because of that; 0: no cap
    objectives: tuple[Objective, ...] = ()  # spec.slo
    limits: tuple[RateLimit, ...] = ()
    fallback: str = ""  # service of the same namespace that answers when this one cannot
    mirror: tuple[str, float] = ("", 0.0)  # revision that gets a copy of so many requests in 100
    first_token_seconds: float | None = None  # for a pod to send a stream's first token, in each attempt
    next_token_seconds: float | None = None  # for each further token of a stream
    created: str = ""  # creationTimestamp: the oldest claim on a model name goes first
    name_lost: str = ""  # the reason for which `served_name` is another service's; "": this service may own it
    owns_name: bool = False  # the operator granted `served_name`
    output_limit: int = 0  # tokens that an answer may have; 0: as many as the model has room for
    max_length: int = 0  # tokens of a prompt and its answer; 0: not known
    peak_output_tokens: int = 0  # new tokens that an answer may have while its class is saturated; 0: no cap
    request_priorities: tuple[tuple[str, int], ...] = ()  # of the InferenceObjectives of its pools, by name

    def priority(self, headers: Mapping[str, str]) -> int:
        """Return the first class whose headers all match, 0 the most important. A request that matches none comes after
        them, and then background work.

        A request that names an InferenceObjective has the class of that number: n classes have the numbers n to 1, requests
        of no class 0 and background work -1. Numbers above n are classes before 0.
        """
        if is_background(headers):
            return len(self.priorities) + 1
        number = self.objective_number(headers)
        if number is not None:
            return len(self.priorities) - number
        for index, required in enumerate(self.priorities):
            if all(headers.get(name) == value for name, value in required):
                return index
        return len(self.priorities)

    def objective_number(self, headers: Mapping[str, str]) -> int | None:
        """Return the priority of the InferenceObjective that a request names; None for none, or one that is not this
        service's."""
        name = headers.get(OBJECTIVE_HEADER) if self.request_priorities else None
        return None if name is None else self._request_priorities.get(name)

    def is_sheddable(self, headers: Mapping[str, str]) -> bool:
        """Whether a request gives way under load: the InferenceObjective that it names has a negative priority."""
        return (self.objective_number(headers) or 0) < 0

    @cached_property
    def _request_priorities(self) -> Mapping[str, int]:
        return dict(self.request_priorities)

    def bounds_of(self, priority: int) -> QueueBounds:
        """Return what may wait of a class, as `priority` counts them. Requests of no class have no bounds of their own."""
        return self.priority_bounds[priority] if 0 <= priority < len(self.priority_bounds) else NO_QUEUE_BOUNDS

    def hold_seconds_of(self, priority: int) -> float:
        """Return how long a request of a class may wait; 0: not at all."""
        own = self.bounds_of(priority).seconds
        return self.hold_seconds if own is None else own

    def class_name(self, headers: Mapping[str, str]) -> str:
        """Return the name of the request's class, "" for none."""
        return self.name_of(self.priority(headers))

    def name_of(self, priority: int) -> str:
        """Return the name of a class, as `priority` counts them, "" for one without a name."""
        return self.priority_names[priority] if 0 <= priority < len(self.priority_names) else ""

    def is_of(self, objective: Objective, priority: int) -> bool:
        """Whether requests of a class, as `priority` counts them, belong to an objective."""
        return not objective.priority or self.name_of(priority) == objective.priority

    @property
    def key(self) -> ServiceKey:
        return (self.namespace, self.name)

    @cached_property
    def reference(self) -> str:
        """Return the revision whose times are the measure for the others': the one with the largest weight that is not the
        canary; "" for none."""
        stable = [(weight, name) for name, weight in self.weights if weight > 0 and name != self.canary]
        return max(stable)[1] if stable else ""


@dataclass(frozen=True)
class Pod:
    """An engine pod that has an address. `ready` is false as soon as it terminates or its Ready condition is
    not True. `silent`: the pod is not Ready only because its node stopped reporting; its containers were ready.
    """

    uid: str
    name: str
    namespace: str
    service: str
    revision: str
    address: str  # ip:port
    ready: bool = True
    engine: Engine = OWN_ENGINE
    silent: bool = False
    key_secret: tuple[str, str] | None = None  # name and key of the Secret with its engine's API key
    # The running engine container. Not compared, because Envoy does not know it and its pod is the same one after a restart.
    container: str = field(default="", compare=False)

    @cached_property
    def cache(self) -> str:
        """Return the name of the prefix cache in the pod: a container that started again has an empty one."""
        return f"{self.uid}/{self.container}"

    @property
    def may_answer(self) -> bool:
        return self.ready or self.silent


@dataclass(frozen=True)
class Snapshot:
    """One consistent view. `pods` has only pods that may get requests now, by service and revision: the ready ones.

    Where no revision with traffic has a ready pod, it has the silent ones too. After an outage the API server marks the pods
    of every node as silent, one node after another. Pods that may answer are then better than an error for every request.
    """

    services: Mapping[ServiceKey, Service] = field(default_factory=dict)
    # in the order of their claims on the name
    by_model: Mapping[str, tuple[ServiceKey, ...]] = field(default_factory=dict)
    pods: Mapping[ServiceKey, Mapping[str, tuple[Pod, ...]]] = field(default_factory=dict)


class State:
    """The latest objects, by key. Writers call put/remove/replace; readers take `snapshot`.

    A pod enters the snapshot only after `confirm` has named it, because Envoy must know its address before the picker
    chooses it. The snapshot is rebuilt at the first read after a change, so a change is in force at the next request. Of it
    only the services that have changed are built again: with 10,000 pods the whole takes too long for one step of the loop.
    """

    def __init__(self) -> None:
        self._services: dict[ServiceKey, Service] = {}
        self._by_model: dict[str, tuple[ServiceKey, ...]] | None = {}  # None: to be built again
        self._pods: dict[str, Pod] = {}
        self._by_service: dict[ServiceKey, dict[str, Pod]] = {}  # the same pods, by uid
        self._groups: dict[ServiceKey, Mapping[str, tuple[Pod, ...]]] = {}  # the snapshot's pods
        self._stale: set[ServiceKey] = set()  # services whose groups are to be built again
        self._request_priorities: Mapping[ServiceKey, tuple[tuple[str, int], ...]] = {}
        self._confirmed: dict[str, Pod] = {}
        self._snapshot: Snapshot | None = None
        self.pods_changed = asyncio.Event()
        self.on_change: Callable[[], None] = lambda: None  # called when the next snapshot will differ

    @property
    def snapshot(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = self._build()
        return self._snapshot

    @property
    def pods(self) -> tuple[Pod, ...]:
        """Return every pod with an address, ready or not, confirmed or not."""
        return tuple(self._pods.values())

    def put_service(self, service: Service) -> None:
        known = self._services.get(service.key)
        if known != service:
            self._services[service.key] = service
            if known is None or (known.served_name, _claim(known)) != (service.served_name, _claim(service)):
                self._by_model = None
            self._stale.add(service.key)
            self._invalidate()

    def remove_service(self, key: ServiceKey) -> None:
        if self._services.pop(key, None) is not None:
            self._by_model = None
            self._stale.add(key)
            self._invalidate()

    def replace_services(self, services: Iterable[Service]) -> None:
        self._stale.update(self._services)
        self._services = {service.key: service for service in services}
        self._stale.update(self._services)
        self._by_model = None
        self._invalidate()

    def set_request_priorities(self, priorities: Mapping[ServiceKey, tuple[tuple[str, int], ...]]) -> None:
        """Replace the priorities of all services' InferenceObjectives."""
        if self._request_priorities != priorities:
            self._request_priorities = priorities
            self._invalidate()

    def put_pod(self, pod: Pod) -> None:
        known = self._pods.get(pod.uid)
        if known != pod or (known is not None and known.container != pod.container):
            if known is not None and _service_of(known) != _service_of(pod):
                self._drop(known)
            self._pods[pod.uid] = pod
            self._by_service.setdefault(_service_of(pod), {})[pod.uid] = pod
            self._stale.add(_service_of(pod))
            self._invalidate_pods()

    def remove_pod(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._drop(pod)
            self._invalidate_pods()

    def replace_pods(self, pods: Iterable[Pod]) -> None:
        self._stale.update(self._by_service)
        self._pods = {pod.uid: pod for pod in pods}
        self._by_service = {}
        for pod in self._pods.values():
            self._by_service.setdefault(_service_of(pod), {})[pod.uid] = pod
        self._stale.update(self._by_service)
        self._invalidate_pods()

    def confirm(self, pods: Iterable[Pod]) -> None:
        """Record that Envoy now knows exactly these pods."""
        before, self._confirmed = self._confirmed, {pod.uid: pod for pod in pods}
        for uid, pod in self._confirmed.items():
            known = before.pop(uid, None)
            if known is not pod:
                self._stale.add(_service_of(pod))
        self._stale.update(map(_service_of, before.values()))
        self._invalidate()

    def are_confirmed(self, pods: Iterable[Pod]) -> bool:
        return all(map(self._is_confirmed, pods))

    def _is_confirmed(self, pod: Pod) -> bool:
        known = self._confirmed.get(pod.uid)
        return known is pod or (known is not None and _identity(known) == _identity(pod))

    def _drop(self, pod: Pod) -> None:
        key = _service_of(pod)
        self._stale.add(key)
        of_service = self._by_service[key]
        del of_service[pod.uid]
        if not of_service:
            del self._by_service[key]

    def _invalidate_pods(self) -> None:
        self.pods_changed.set()
        self._invalidate()

    def _invalidate(self) -> None:
        self._snapshot = None
        self.on_change()

    def _build(self) -> Snapshot:
        if self._by_model is None:
            by_model: dict[str, list[ServiceKey]] = {}
            for service in sorted(self._services.values(), key=_claim):
                if service.served_name:
                    by_model.setdefault(service.served_name, []).append(service.key)
            self._by_model = {model: tuple(keys) for model, keys in by_model.items()}
        for key in self._stale:
            if group := self._group(key):
                self._groups[key] = group
            else:
                self._groups.pop(key, None)
        self._stale.clear()
        services = dict(self._services)
        for key, priorities in self._request_priorities.items():
            if key in services:
                services[key] = replace(services[key], request_priorities=priorities)
        return Snapshot(services=services, by_model=self._by_model, pods=dict(self._groups))

    def _group(self, key: ServiceKey) -> Mapping[str, tuple[Pod, ...]]:
        pods = [pod for pod in self._by_service.get(key, {}).values() if pod.may_answer and self._is_confirmed(pod)]
        if any(pod.ready and self._has_traffic(pod) for pod in pods):
            pods = [pod for pod in pods if pod.ready]
        revisions: dict[str, list[Pod]] = {}
        for pod in pods:
            revisions.setdefault(pod.revision, []).append(pod)
        return {revision: tuple(group) for revision, group in revisions.items()}

    def _has_traffic(self, pod: Pod) -> bool:
        service = self._services.get(_service_of(pod))
        return service is not None and any(weight and revision == pod.revision for revision, weight in service.weights)


def _service_of(pod: Pod) -> ServiceKey:
    return (pod.namespace, pod.service)


def _claim(service: Service) -> tuple[bool, bool, str, ServiceKey]:
    """Return the order of claims on a model name: the one that was granted, then the oldest, then those that lost it."""
    return (not service.owns_name, bool(service.name_lost), service.created, service.key)


def _identity(pod: Pod) -> Pod:
    """Return the pod without its readiness, which Envoy's endpoints do not have."""
    return pod if pod.ready else replace(pod, ready=True, silent=False)
