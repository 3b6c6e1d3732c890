"""Holds requests that no pod can take now, and releases them in fair order. Decides nothing about pods.

A service's requests are held while it has no ready pod (it scales from zero) or every pod is at its limit. They are bounded
in number, bytes and time, per service and altogether. Changes of the pods and ends of requests release the next ones.
A request that may go to some pods only (a subset, the canary) waits in a lane of its own: it blocks nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from pagefleet_contract.traffic import MAX_HELD_BYTES, MAX_HELD_REQUESTS
from pagefleet_gateway.cluster.state import Service, ServiceKey
from pagefleet_gateway.holding.fair_queue import Entry, FairQueue
from pagefleet_gateway.picking import refusals
from pagefleet_gateway.picking.picker import Admitted, Lane, Pick, Picker, Request
from pagefleet_gateway.picking.refusals import NO_POD_IN_SUBSET, NO_READY_POD, OVERLOADED
from pagefleet_gateway.picking.routing import Refusal

Decision = Pick | Refusal


@dataclass(frozen=True)
class Bounds:
    """Of all services together; a service's own are in `Service`."""

    entries: int = MAX_HELD_REQUESTS
    bytes: int = MAX_HELD_BYTES


@dataclass(eq=False)
class HeldRequest:
    admitted: Admitted
    lane: Lane
    decision: asyncio.Future[Decision]


class Holding:
    """Decides at once, or later by a future. Cancelling the future gives the request up.

    `on_wake(service)` is called when a request first needs a pod of a service that holds requests and has none, and not
    again before the service had one. `on_arrival` is called for every request within its limits, before it may have to wait.
    """

    def __init__(
        self,
        picker: Picker,
        clock: Callable[[], float],
        on_wake: Callable[[ServiceKey], None],
        bounds: Bounds = Bounds(),
        on_arrival: Callable[[Admitted], None] = lambda _: None,
    ) -> None:
        self._picker, self._clock, self._on_wake, self._bounds = picker, clock, on_wake, bounds
        self._on_arrival = on_arrival
        self._queues: dict[ServiceKey, FairQueue[HeldRequest]] = {}
        self._woken: set[ServiceKey] = set()  # services without pods whose wake-up was sent
        self._closed = False
        picker.held_class = self._held_class

    def _held_class(self, key: ServiceKey) -> int | None:
        queue = self._queues.get(key)
        return None if queue is None else queue.first_priority

    def held(self, key: ServiceKey) -> int:
        """Return the number of requests that wait. It is at least 1 for a service without pods since its fallback had to
        take a request.
        """
        return len(self._queues.get(key, ())) or int(key in self._woken)

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
        queue = self._queues.get(admitted.service.key)
        if self._closed or queue is None or not queue.has_lane(self._picker.lane(admitted)):
            decision = self._picker.choose(admitted, now)
            if not self._may_wait(admitted, decision):
                if _needs_pod(decision):
                    self._wake(admitted.service)
                return decision
        return self._hold(admitted)

    def release(self) -> None:
        """Let go what can go now. Call it after every change of the pods and every request's end."""
        self._woken = {key for key in self._woken if not self._picker.has_pods(key)}
        for key, queue in list(self._queues.items()):
            blocked: set[Lane] = set()
            while (entry := queue.peek(blocked)) is not None:
                held = entry.item
                if not held.decision.done():
                    decision = self._picker.choose(held.admitted, self._clock())
                    if self._may_wait(held.admitted, decision):
                        blocked.add(held.lane)
                        continue
                    held.decision.set_result(decision)
                queue.take(entry)
            self._forget_empty(key)

    def close(self) -> None:
        """Refuse what is held, and hold no more: another gateway pod can take it."""
        self._closed = True
        for queue in list(self._queues.values()):
            for entry in list(queue):
                _refuse(entry, refusals.draining(entry.item.admitted.service))

    def _may_wait(self, admitted: Admitted, decision: Decision) -> bool:
        waits = isinstance(decision, Refusal) and decision.code in (NO_READY_POD, OVERLOADED)
        return waits and admitted.service.hold_seconds > 0 and not self._closed

    def _hold(self, admitted: Admitted) -> Decision | asyncio.Future[Decision]:
        service, size = admitted.service, len(admitted.request.body)
        entries = sum(len(queue) for queue in self._queues.values())
        stored = sum(queue.bytes for queue in self._queues.values())
        if entries >= self._bounds.entries or stored + size > self._bounds.bytes:
            return refusals.all_queues_full(service, self._bounds.entries, self._bounds.bytes)
        queue = self._queues.setdefault(service.key, FairQueue(service.hold_requests, service.hold_bytes))
        loop = asyncio.get_running_loop()
        held = HeldRequest(admitted, self._picker.lane(admitted), loop.create_future())
        tenant = admitted.request.headers.get(service.tenant_header, "") if service.tenant_header else ""
        entry = Entry(held, service.priority(admitted.request.headers), tenant, admitted.cost.tokens, size, held.lane)
        displaced = queue.push(entry)
        if displaced is None:
            self._forget_empty(service.key)
            return refusals.queue_full(service)
        for other in displaced:
            _refuse(other, refusals.displaced(other.item.admitted.service))
        self._wake(service)
        timer = loop.call_later(service.hold_seconds, self._expire, held)

        def clean_up(_: asyncio.Future[Decision]) -> None:
            timer.cancel()
            queue.remove(entry)
            self._forget_empty(service.key)

        held.decision.add_done_callback(clean_up)
        return held.decision

    def _wake(self, service: Service) -> None:
        """Send the wake-up of a service without pods, once."""
        if service.hold_seconds > 0 and service.key not in self._woken and not self._picker.has_pods(service.key):
            self._woken.add(service.key)
            self._on_wake(service.key)

    def _expire(self, held: HeldRequest) -> None:
        if not held.decision.done():
            held.decision.set_result(self._picker.choose(held.admitted, self._clock()))

    def _forget_empty(self, key: ServiceKey) -> None:
        if not self._queues.get(key, True):
            del self._queues[key]


def _needs_pod(decision: Decision) -> bool:
    """Return whether a request that does not wait still shows that its service needs a pod."""
    return decision.code == NO_POD_IN_SUBSET if isinstance(decision, Refusal) else bool(decision.fallback)


def _refuse(entry: Entry[HeldRequest], refusal: Refusal) -> None:
    if not entry.item.decision.done():
        entry.item.decision.set_result(refusal)
