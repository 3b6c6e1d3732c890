"""The simulated gateway: it sends a request to the pod that is the cheapest for it (`picking`), and holds it while none is ready.

It never re-routes a request: a request stays with the pod that it was sent to.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from pagefleet_simulator.fleet.picking import Picking
from pagefleet_simulator.fleet.pods import Pod, Pods
from pagefleet_simulator.fleet.request import Ending, Request


class Gateway:
    """At most `limit` requests are held, each for at most `seconds`; with 0 seconds none is. The same `seed` draws the same lots."""

    def __init__(self, pods: Pods, seconds: float, limit: int, seed: int = 0) -> None:
        self._pods, self._seconds, self._limit = pods, seconds, limit
        self._picking = Picking(random.Random(seed))  # noqa: S311  lots, not secrets
        self.held: deque[Request] = deque()

    def pick(self, request: Request, now: float) -> Pod | None:
        """The pod for a request; None when the request is held now or was dropped (see its `ending`)."""
        ready = self._pods.ready
        if not ready:
            if len(self.held) >= self._limit or not self._seconds:
                _drop(request, now)
            else:
                self.held.append(request)
            return None
        pod = self._picking.best(ready, request, now)
        full = len(pod.engine.waiting) >= pod.engine.profile.max_queued
        if full or not pod.engine.fits(request):
            _drop(request, now)
            return None
        self._picking.send(pod, request, now)
        return pod

    def end(self, pod: Pod, ended: Sequence[Request]) -> None:
        """Requests that a pod was sent have ended."""
        for request in ended:
            self._picking.end(pod, request)

    def release(self) -> list[Request]:
        """Release the held requests: the most important first, and those of a rank in the order of their arrival."""
        released = sorted(self.held, key=lambda request: request.rank)
        self.held.clear()
        return released

    def expire(self, now: float) -> list[Request]:
        """Drop the requests that were held too long."""
        late = []
        while self.held and now - self.held[0].arrival.at > self._seconds:
            late.append(self.held.popleft())
            _drop(late[-1], now)
        return late


def _drop(request: Request, now: float) -> None:
    request.ending, request.end = Ending.DROPPED, now
