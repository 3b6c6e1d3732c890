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
# Names an InferenceObjective (Gateway API Inference Extension). Clients of our own Envoy cannot send it.
OBJECTIVE_HEADER = "x-gateway-inference-objective"


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
    chooses it. The snapshot is rebuilt at the first read after a change, so a change is in force at the next request.
    """

    def __init__(self) -> None:
        self._services: dict[ServiceKey, Service] = {}
        self._pods: dict[str, Pod] = {}
        self._request_priorities: Mapping[ServiceKey, tuple[tuple[str, int], ...]] = {}
        self._confirmed: frozenset[Pod] = frozenset()
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
        if self._services.get(service.key) != service:
            self._services[service.key] = service
            self._invalidate()

    def remove_service(self, key: ServiceKey) -> None:
        if self._services.pop(key, None) is not None:
            self._invalidate()

    def replace_services(self, services: Iterable[Service]) -> None:
        self._services = {service.key: service for service in services}
        self._invalidate()

    def set_request_priorities(self, priorities: Mapping[ServiceKey, tuple[tuple[str, int], ...]]) -> None:
        """Replace the priorities of all services' InferenceObjectives."""
        if self._request_priorities != priorities:
            self._request_priorities = priorities
            self._invalidate()

    def put_pod(self, pod: Pod) -> None:
        known = self._pods.get(pod.uid)
        if known != pod or (known is not None and known.container != pod.container):
            self._pods[pod.uid] = pod
            self._invalidate_pods()

    def remove_pod(self, uid: str) -> None:
        if self._pods.pop(uid, None) is not None:
            self._invalidate_pods()

    def replace_pods(self, pods: Iterable[Pod]) -> None:
        self._pods = {pod.uid: pod for pod in pods}
        self._invalidate_pods()

    def confirm(self, pods: Iterable[Pod]) -> None:
        """Record that Envoy now knows exactly these pods."""
        self._confirmed = frozenset(_identity(pod) for pod in pods)
        self._invalidate()

    def are_confirmed(self, pods: Iterable[Pod]) -> bool:
        return all(_identity(pod) in self._confirmed for pod in pods)

    def _invalidate_pods(self) -> None:
        self.pods_changed.set()
        self._invalidate()

    def _invalidate(self) -> None:
        self._snapshot = None
        self.on_change()

    def _build(self) -> Snapshot:
        by_model: dict[str, list[ServiceKey]] = {}
        for service in sorted(self._services.values(), key=_claim):
            if service.served_name:
                by_model.setdefault(service.served_name, []).append(service.key)
        pods: dict[ServiceKey, dict[str, list[Pod]]] = {}
        candidates = [pod for pod in self._pods.values() if pod.may_answer and _identity(pod) in self._confirmed]
        served = {(pod.namespace, pod.service) for pod in candidates if pod.ready and self._has_traffic(pod)}
        for pod in candidates:
            if pod.ready or (pod.namespace, pod.service) not in served:
                revisions = pods.setdefault((pod.namespace, pod.service), {})
                revisions.setdefault(pod.revision, []).append(pod)
        services = dict(self._services)
        for key, priorities in self._request_priorities.items():
            if key in services:
                services[key] = replace(services[key], request_priorities=priorities)
        return Snapshot(
            services=services,
            by_model={model: tuple(keys) for model, keys in by_model.items()},
            pods={key: {name: tuple(group) for name, group in by.items()} for key, by in pods.items()},
        )

    def _has_traffic(self, pod: Pod) -> bool:
        service = self._services.get((pod.namespace, pod.service))
        return service is not None and any(weight and revision == pod.revision for revision, weight in service.weights)


def _claim(service: Service) -> tuple[bool, bool, str, ServiceKey]:
    """Return the order of claims on a model name: the one that was granted, then the oldest, then those that lost it."""
    return (not service.owns_name, bool(service.name_lost), service.created, service.key)


def _identity(pod: Pod) -> Pod:
    """Return the pod without its readiness, which Envoy's endpoints do not have."""
    return pod if pod.ready else replace(pod, ready=True, silent=False)
