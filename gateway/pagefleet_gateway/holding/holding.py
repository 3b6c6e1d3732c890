"""Holds requests that no pod can take now, and releases them in fair order. Decides nothing about pods.

A service's requests are held while it has no ready pod (it scales from zero) or every pod is at its limit. They are bounded
in number, bytes and time, per service and altogether. Changes of the pods and ends of requests release the next ones.
A request that may go to some pods only (a subset, the canary) waits in a lane of its own: it blocks nobody else.
Gateways tell each other what waits in them and whose requests they let go (turns.py): the bounds of a service hold for
all of them together, and a more important request of another gateway, or one of a tenant that has had less, goes first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pagefleet_contract.traffic import MAX_HELD_BYTES, MAX_HELD_REQUESTS
from pagefleet_gateway.cluster.service import Service, ServiceKey
from pagefleet_gateway.holding.elsewhere import MAX_CLASSES, Waiting, surplus
from pagefleet_gateway.holding.fair_queue import Entry, FairQueue
from pagefleet_gateway.holding.shares import tenant_of
from pagefleet_gateway.holding.turns import Turns
from pagefleet_gateway.picking import refusals
from pagefleet_gateway.picking.pick import Admitted, Pick, Request
from pagefleet_gateway.picking.picker import Lane, Picker
from pagefleet_gateway.picking.refusals import NO_POD_IN_SUBSET, NO_READY_POD, OVERLOADED
from pagefleet_gateway.picking.routing import Refusal

Decision = Pick | Refusal
ANY_POD: Lane = (None, False)  # the lane of requests that any pod with traffic may answer
FAIRNESS_ID = "x-gateway-inference-fairness-id"  # clients of our own Envoy cannot set it
YIELD_SECONDS = 0.1  # for a more important request of another gateway: five messages between gateways
STEP_REQUESTS = 50  # that are let go before other requests have their turn: some milliseconds


class Later(asyncio.Future[Decision]):
    """The decision about a request that waits; it comes within `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.seconds = seconds


@dataclass(frozen=True)
class Bounds:
    """Of all services together; a service's own are in `Service`."""

    entries: int = MAX_HELD_REQUESTS
    bytes: int = MAX_HELD_BYTES


@dataclass(eq=False)
class HeldRequest:
    admitted: Admitted
    lane: Lane
    decision: Later


class Holding:
    """Decides at once, or later by a future. Cancelling the future gives the request up.

    `on_wake(service)` is called when a request first needs a pod of a service that holds requests and has none, and not
    again before the service had one. `on_arrival` is called for every request within its limits, before it may have to wait.
    `on_left` is called with a request that was given up while it waited, and the seconds that it had waited. One that its header
    forces to the canary is no request of the service's own, so it is not called for that.
    """

    def __init__(
        self,
        picker: Picker,
        clock: Callable[[], float],
        on_wake: Callable[[ServiceKey], None],
        bounds: Bounds = Bounds(),
        on_arrival: Callable[[Admitted], None] = lambda _: None,
        name: str = "",
    ) -> None:
        """`name` is this gateway's, among those that tell each other what waits."""
        self._picker, self._clock, self._on_wake, self._bounds = picker, clock, on_wake, bounds
        self._on_arrival = on_arrival
        self.on_left: Callable[[Admitted, float], None] = lambda _, __: None
        self._queues: dict[ServiceKey, FairQueue[HeldRequest]] = {}
        self._woken: set[ServiceKey] = set()  # services without pods whose wake-up was sent
        self._closed = self._goes_on = False
        self._name = name
        self.turns = Turns(lambda key, priority: self._queues[key].tenants(priority) if key in self._queues else ())
        self._changed: set[ServiceKey] = set()  # services whose queue has changed since `take_changed`
        self._yielding: dict[ServiceKey, float] = {}  # until when the service's requests let another gateway's go first
        picker.held_class = self._held_class

    def _held_class(self, key: ServiceKey) -> int | None:
        """Return the most important class of a service of which a request waits in any gateway."""
        queue = self._queues.get(key)
        classes = (None if queue is None else queue.first_priority, self.turns.elsewhere.first(key))
        return min((one for one in classes if one is not None), default=None)

    def _is_outranked(self, key: ServiceKey, priority: int) -> bool:
        """Return whether a request of a more important class waits in any gateway."""
        first = self._held_class(key)
        return first is not None and first < priority

    def rows(self) -> Mapping[str, list[list[object]]]:
        """Return what waits here, for another gateway: by `namespace/name` a row for each class."""
        return {"/".join(key): self._rows(key) for key in self._queues}

    def take_changed(self) -> Mapping[str, list[list[object]]]:
        """Return the rows of the services that have changed since the last call."""
        changed, self._changed = self._changed, set()
        return {"/".join(key): self._rows(key) for key in changed}

    def _rows(self, key: ServiceKey) -> list[list[object]]:
        return [waiting.row for waiting in self._waiting(key)[:MAX_CLASSES]]

    def _waiting(self, key: ServiceKey) -> tuple[Waiting, ...]:
        """Return what waits here, by class, the most important first."""
        classes: dict[int, list[Entry[HeldRequest]]] = {}
        for entry in self._queues.get(key, ()):
            classes.setdefault(entry.priority, []).append(entry)
        return tuple(
            Waiting(
                priority,
                len(some),
                sum(one.size for one in some),
                sum(one.lane == ANY_POD for one in some),
                self.turns.first(key, priority, {one.tenant for one in some if one.lane == ANY_POD}),
            )
            for priority, some in sorted(classes.items())
        )

    def hear(self, gateway: str, rows: object, served: object = None, *, whole: bool) -> None:
        """Take over what waits in another gateway, and what tenants got there. Where its more important requests need the
        room, give up some of ours."""
        for key in self.turns.hear(gateway, rows, served, whole=whole):
            self._forget_empty(key)
            if key in self._queues:
                self._give_up(key)

    def forget(self, gateway: str) -> None:
        """Forget what waits in a gateway that is gone or silent."""
        for key in self.turns.forget(gateway):
            self._forget_empty(key)

    def _give_up(self, key: ServiceKey) -> None:
        queue = self._queues[key]
        priority, count = surplus(self._name, key, self._waiting(key), self.turns.elsewhere, queue.max_entries)
        for entry in queue.last(priority, count):
            _refuse(entry, refusals.displaced(entry.item.admitted.service))

    def _yields(self, admitted: Admitted, lane: Lane, priority: int, tenant: str) -> bool:
        """Return whether a request lets one of another gateway go first: a more important one, or one of its class whose tenant
        has had less. It does so for YIELD_SECONDS from when a pod is free: the other gateway may not reach that pod.
        """
        key = admitted.service.key
        later = lane == ANY_POD and self.turns.goes_later(key, priority, tenant)
        if not later or not self._picker.has_room(admitted):
            self._yielding.pop(key, None)
            return False
        now = self._clock()
        until = self._yielding.get(key)
        if until is None:
            self._yielding[key] = now + YIELD_SECONDS
            asyncio.get_running_loop().call_later(YIELD_SECONDS, self.release)
            return True
        return now < until

    def held(self, key: ServiceKey) -> int:
        """Return the number of requests that wait. It is at least 1 for a service without pods since its fallback had to
        take a request.
        """
        return len(self._queues.get(key, ())) or int(key in self._woken)

    def held_elsewhere(self, key: ServiceKey) -> int:
        """Return the number of a service's requests that wait in other gateways, as far as these have told of them."""
        return self.turns.elsewhere.sums(key, 0)[0]

    def held_by_service(self) -> dict[ServiceKey, int]:
        """Return `held` of every service for which it is not 0."""
        return {key: count for key in (*self._queues, *self._woken) if (count := self.held(key))}

    def queued_by_service(self) -> dict[ServiceKey, int]:
        """Return the length of every queue."""
        return {key: len(queue) for key, queue in self._queues.items()}

    def decide(self, request: Request) -> Decision | asyncio.Future[Decision]:
        now = self._clock()
        admitted = self._picker.admit(request, now)
        if isinstance(admitted, Refusal):
            return admitted
        self._on_arrival(admitted)
        # A new request must not overtake those that wait for the same pods.
        service, lane = admitted.service, self._picker.lane(admitted)
        priority, tenant = service.priority(request.headers), _tenant(admitted)
        queue = self._queues.get(service.key)
        drops = service.is_sheddable(request.headers) and self._is_outranked(service.key, priority)
        waits = queue is not None and queue.has_lane(lane) and not drops
        if service.hold_seconds_of(priority) > 0 and not (waits or drops):
            self.turns.arrive(service.key, priority, tenant)
            waits = self._yields(admitted, lane, priority, tenant)
        if self._closed or not waits:
            decision = self._picker.choose(admitted, now)
            if not self._may_wait(admitted, decision):
                if _needs_pod(decision):
                    self._wake(admitted)
                if isinstance(decision, Pick):
                    self.turns.charge(service.key, priority, tenant, admitted.cost.tokens)
                return decision
        return self._hold(admitted, lane, priority, tenant)

    def release(self, freed: ServiceKey | None = None) -> None:
        """Let go what can go now, in steps. Call it after every change of the pods and every request's end. `freed`: nothing has
        changed but a pod of this service, which has one request less."""
        left = STEP_REQUESTS
        picker = self._picker
        if freed is None:
            self._woken = {key for key in self._woken if picker.has_service(key) and not picker.has_pods(key)}
        for key, queue in list(self._queues.items()):
            if freed is not None and not picker.may_answer(freed, key):
                continue
            blocked: set[Lane] = set()
            while (entry := queue.peek(blocked)) is not None:
                held = entry.item
                if not held.decision.done():
                    if not left:
                        self._go_on()
                        return
                    if self._yields(held.admitted, held.lane, entry.priority, entry.tenant):
                        blocked.add(held.lane)
                        continue
                    decision = self._picker.choose(held.admitted, self._clock())
                    if self._may_wait(held.admitted, decision):
                        blocked.add(held.lane)
                        continue
                    held.decision.set_result(decision)
                    left -= 1
                queue.take(entry)
            self._forget_empty(key)

    def _go_on(self) -> None:
        """Let go more in the event loop's next round."""
        if not self._goes_on:
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self._next_step)

    def _next_step(self) -> None:
        self._goes_on = False
        self.release()

    def close(self) -> None:
        """Refuse what is held, and hold no more: another gateway pod can take it."""
        self._closed = True
        for queue in list(self._queues.values()):
            for entry in list(queue):
                _refuse(entry, refusals.draining(entry.item.admitted.service))

    def _may_wait(self, admitted: Admitted, decision: Decision) -> bool:
        waits = isinstance(decision, Refusal) and decision.code in (NO_READY_POD, OVERLOADED)
        # For a service that was deleted while the request waited, no pod will come.
        waits = waits and self._picker.has_service(admitted.service.key)
        return waits and self._seconds(admitted) > 0 and not self._closed

    def _seconds(self, admitted: Admitted) -> float:
        """Return how long a request may wait."""
        return admitted.service.hold_seconds_of(admitted.service.priority(admitted.request.headers))

    def _is_class_full(self, queue: FairQueue[HeldRequest], service: Service, priority: int, size: int) -> bool:
        """Return whether a class has no room of its own for one more request, what waits in other gateways counted."""
        bounds = service.bounds_of(priority)
        (here, bytes_here), (there, bytes_there) = (
            queue.of_class(priority),
            self.turns.elsewhere.of_class(service.key, priority),
        )
        return 0 < bounds.requests <= here + there or 0 < bounds.bytes < bytes_here + bytes_there + size

    def _hold(self, admitted: Admitted, lane: Lane, priority: int, tenant: str) -> Decision | asyncio.Future[Decision]:
        service, size = admitted.service, len(admitted.request.body)
        entries = sum(len(queue) for queue in self._queues.values())
        stored = sum(queue.bytes for queue in self._queues.values())
        if entries >= self._bounds.entries or stored + size > self._bounds.bytes:
            return refusals.all_queues_full(service, self._bounds.entries, self._bounds.bytes)
        queue = self._queue(service)
        loop, began = asyncio.get_running_loop(), self._clock()
        held = HeldRequest(admitted, lane, Later(self._seconds(admitted)))
        if self._is_class_full(queue, service, priority, size):
            self._forget_empty(service.key)
            return refusals.class_queue_full(service, priority)
        entry = Entry(held, priority, tenant, admitted.cost.tokens, size, held.lane)
        displaced = queue.push(entry, self.turns.others(service.key, priority))
        if displaced is None:
            self._forget_empty(service.key)
            return refusals.queue_full(service)
        for other in displaced:
            _refuse(other, refusals.displaced(other.item.admitted.service))
        self._changed.add(service.key)
        self._wake(admitted)
        timer = loop.call_later(self._seconds(admitted), self._expire, held)

        def clean_up(decision: asyncio.Future[Decision]) -> None:
            timer.cancel()
            if decision.cancelled() and not lane[1]:
                self.on_left(admitted, self._clock() - began)
            queue.remove(entry)
            self._changed.add(service.key)
            self._forget_empty(service.key)

        held.decision.add_done_callback(clean_up)
        return held.decision

    def _queue(self, service: Service) -> FairQueue[HeldRequest]:
        """Return the service's queue with the bounds that it has now: while requests wait, its owner may change them."""
        queue = self._queues.get(service.key)
        if queue is None:
            shares = self.turns.shares(service.key)
            return self._queues.setdefault(service.key, FairQueue(service.hold_requests, service.hold_bytes, shares))
        queue.max_entries, queue.max_bytes = service.hold_requests, service.hold_bytes
        return queue

    def _wake(self, admitted: Admitted) -> None:
        """Send the wake-up of a service without pods, once."""
        service = admitted.service
        if self._seconds(admitted) > 0 and service.key not in self._woken and not self._picker.has_pods(service.key):
            self._woken.add(service.key)
            self._on_wake(service.key)

    def _expire(self, held: HeldRequest) -> None:
        if not held.decision.done():
            held.decision.set_result(self._picker.choose(held.admitted, self._clock()))

    def _forget_empty(self, key: ServiceKey) -> None:
        if not self._queues.get(key, True):
            del self._queues[key]
        if key not in self._queues:
            self.turns.forget_idle(key)


def _tenant(admitted: Admitted) -> str:
    """Return whose a request is: the value of the service's header, else of the header that a gateway in front sets (the
    inference extension's flow control), else the client's API key."""
    headers, header = admitted.request.headers, admitted.service.tenant_header
    return tenant_of(headers.get(header, "") if header else headers.get(FAIRNESS_ID) or admitted.api_key)


def _needs_pod(decision: Decision) -> bool:
    """Return whether a request that does not wait still shows that its service needs a pod."""
    return decision.code == NO_POD_IN_SUBSET if isinstance(decision, Refusal) else bool(decision.fallback)


def _refuse(entry: Entry[HeldRequest], refusal: Refusal) -> None:
    if not entry.item.decision.done():
        entry.item.decision.set_result(refusal)
