"""Holds requests that no pod can take now, and lets them go on in fair order. Decides nothing about pods.

A service's requests are held while it has no ready pod (it scales from zero) or every pod is at its limit: bounded in
number, bytes and time, per service and altogether. Pods' changes and requests' ends let the next ones go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from pagefleet_gateway.cluster.state import ServiceKey
from pagefleet_gateway.holding.fair_queue import Entry, FairQueue
from pagefleet_gateway.picking.picker import (
    NO_READY_POD,
    OVERLOADED,
    RETRY_AFTER_SECONDS,
    Admitted,
    Pick,
    Picker,
    Request,
)
from pagefleet_gateway.picking.routing import Refusal

Answer = Pick | Refusal


@dataclass(frozen=True)
class Bounds:
    """Of all services together; a service's own are in `Service`."""

    entries: int = 4096
    bytes: int = 256 * 1024 * 1024


@dataclass(eq=False)
class Held:
    admitted: Admitted
    answer: asyncio.Future[Answer]


class Holding:
    """`decide` answers at once, or with a future; who cancels it gives the request up. `wake(service)` is called when
    a request first finds a service that holds requests without a pod, and not again before it had one; `arrived` for
    every request within its limits, before it may have to wait.
    """

    def __init__(
        self,
        picker: Picker,
        clock: Callable[[], float],
        wake: Callable[[ServiceKey], None],
        bounds: Bounds = Bounds(),
        arrived: Callable[[Admitted], None] = lambda _: None,
    ) -> None:
        self._picker, self._clock, self._wake, self._bounds = picker, clock, wake, bounds
        self._arrived = arrived
        self._queues: dict[ServiceKey, FairQueue[Held]] = {}
        self._woken: set[ServiceKey] = set()  # without pods, and called for
        self._closed = False

    def held(self, key: ServiceKey) -> int:
        """Requests that wait; at least 1 for a service without pods since its fallback had to take one."""
        return len(self._queues.get(key, ())) or int(key in self._woken)

    def waited_for(self) -> dict[ServiceKey, int]:
        """`held` of the services it is not 0 for."""
        return {key: count for key in (*self._queues, *self._woken) if (count := self.held(key))}

    def by_service(self) -> dict[ServiceKey, int]:
        return {key: len(queue) for key, queue in self._queues.items()}

    def decide(self, request: Request) -> Answer | asyncio.Future[Answer]:
        now = self._clock()
        admitted = self._picker.admit(request, now)
        if isinstance(admitted, Refusal):
            return admitted
        self._arrived(admitted)
        # Who comes later must not overtake who waits.
        if self._closed or not self._queues.get(admitted.service.key):
            answer = self._picker.choose(admitted, now)
            if not self._may_wait(admitted, answer):
                if isinstance(answer, Pick) and answer.fallback:
                    self._call_for(admitted)
                return answer
        return self._hold(admitted)

    def pump(self) -> None:
        """Let go what can go now. Call it after every change of the pods and every request's end."""
        self._woken = {key for key in self._woken if not self._picker.has_pods(key)}
        for key, queue in list(self._queues.items()):
            while (entry := queue.peek()) is not None:
                held = entry.item
                if not held.answer.done():
                    answer = self._picker.choose(held.admitted, self._clock())
                    if self._may_wait(held.admitted, answer):
                        break
                    held.answer.set_result(answer)
                queue.pop()
            self._forget_empty(key)

    def close(self) -> None:
        """Refuse what is held, and hold no more: another gateway pod can take it."""
        self._closed = True
        for queue in list(self._queues.values()):
            for entry in list(queue):
                _shed(entry, "gateway_draining", "the gateway stops: try again")

    def _may_wait(self, admitted: Admitted, answer: Answer) -> bool:
        waits = isinstance(answer, Refusal) and answer.code in (NO_READY_POD, OVERLOADED)
        return waits and admitted.service.hold_seconds > 0 and not self._closed

    def _hold(self, admitted: Admitted) -> Answer | asyncio.Future[Answer]:
        service, size = admitted.service, len(admitted.request.body)
        entries = sum(len(queue) for queue in self._queues.values())
        stored = sum(queue.bytes for queue in self._queues.values())
        if entries >= self._bounds.entries or stored + size > self._bounds.bytes:
            return _full(service.key, "the gateway holds as many requests as it may")
        queue = self._queues.setdefault(service.key, FairQueue(service.hold_requests, service.hold_bytes))
        loop = asyncio.get_running_loop()
        held = Held(admitted, loop.create_future())
        tenant = admitted.request.headers.get(service.tenant_header, "") if service.tenant_header else ""
        entry = Entry(held, service.priority(admitted.request.headers), tenant, admitted.ask.tokens, size)
        displaced = queue.push(entry)
        if displaced is None:
            self._forget_empty(service.key)
            return _full(service.key, f"{service.hold_requests} requests or {service.hold_bytes} bytes wait already")
        for other in displaced:
            _shed(other, "displaced", "a request of a higher priority took this one's place")
        self._call_for(admitted)
        timer = loop.call_later(service.hold_seconds, self._expire, held)

        def over(_: asyncio.Future[Answer]) -> None:
            timer.cancel()
            queue.remove(entry)
            self._forget_empty(service.key)

        held.answer.add_done_callback(over)
        return held.answer

    def _call_for(self, admitted: Admitted) -> None:
        key = admitted.service.key
        if admitted.service.hold_seconds > 0 and key not in self._woken and not self._picker.has_pods(key):
            self._woken.add(key)
            self._wake(key)

    def _expire(self, held: Held) -> None:
        if not held.answer.done():
            held.answer.set_result(self._picker.choose(held.admitted, self._clock()))

    def _forget_empty(self, key: ServiceKey) -> None:
        if not self._queues.get(key, True):
            del self._queues[key]


def _shed(entry: Entry[Held], code: str, message: str) -> None:
    key, draining = entry.item.admitted.service.key, code == "gateway_draining"
    status, kind = (503, "server_error") if draining else (429, "rate_limit_error")
    if not entry.item.answer.done():
        entry.item.answer.set_result(Refusal(status, kind, code, message, retry_after=RETRY_AFTER_SECONDS, service=key))


def _full(key: ServiceKey, message: str) -> Refusal:
    return Refusal(429, "rate_limit_error", "queue_full", message, retry_after=RETRY_AFTER_SECONDS, service=key)
