"""The simulated gateway: it sends a request to the pod with the fewest requests in flight, and holds it while none is ready.

It never re-routes a request: a request stays with the pod that it was sent to.
"""

from __future__ import annotations

from collections import deque

from pagefleet_simulator.fleet.pods import Pod, Pods
from pagefleet_simulator.fleet.request import Ending, Request


class Gateway:
    """At most `limit` requests are held, each for at most `seconds`."""

    def __init__(self, pods: Pods, seconds: float, limit: int) -> None:
        self._pods, self._seconds, self._limit = pods, seconds, limit
        self.held: deque[Request] = deque()

    def pick(self, request: Request, now: float) -> Pod | None:
        """The pod for a request; None when the request is held now or was dropped (see its `ending`)."""
        ready = self._pods.ready
        if not ready:
            if len(self.held) >= self._limit:
                _drop(request, now)
            else:
                self.held.append(request)
            return None
        pod = min(ready, key=_load)
        full = len(pod.engine.waiting) >= pod.engine.profile.max_queued
        if full or not pod.engine.fits(request):
            _drop(request, now)
            return None
        return pod

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


def _load(pod: Pod) -> tuple[int, int]:
    return pod.engine.in_flight, pod.index


def _drop(request: Request, now: float) -> None:
    request.ending, request.end = Ending.DROPPED, now
