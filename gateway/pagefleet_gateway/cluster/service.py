"""The part of an InferenceService that the gateway knows: how its requests are routed, limited and queued. Values; decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pagefleet_contract.headers import is_background
from pagefleet_contract.slo import Objective

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
