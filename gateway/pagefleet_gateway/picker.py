"""One request's decision: service, revision, pods, or a refusal. No I/O; the time is an argument.

Never waits and never proxies: it names the pods, Envoy does the rest.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .ledger import Ledger, Ticket
from .pick import candidates, order
from .routing import Refusal, route
from .split import Splits, Weights, forced
from .state import Pod, Service, Snapshot, State

DEFAULT_TIMEOUT_SECONDS = 600.0
RETRY_AFTER_SECONDS = 5


@dataclass(frozen=True)
class Request:
    """What the picker sees of a request. Header names are lower case."""

    id: str
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True)
class Pick:
    revision: str
    choices: tuple[Pod, ...]
    timeout_seconds: float | None  # None: the gateway's default
    retries: int


class Picker:
    """Holds the draws; reads the state; writes the ledger."""

    def __init__(
        self,
        state: State,
        ledger: Ledger,
        rng: random.Random,
        queue: Callable[[Pod, float], float] = lambda pod, now: 0.0,
    ) -> None:
        self._state = state
        self._ledger = ledger
        self._rng = rng
        self._queue = queue
        self.splits = Splits(rng)

    def decide(self, request: Request, now: float) -> Pick | Refusal:
        """Choose for a request and open its ticket."""
        snapshot = self._state.snapshot
        service = route(snapshot, request.method, request.path, request.body)
        if isinstance(service, Refusal):
            return service
        pick = self._pick(snapshot, service, request.headers, now)
        if isinstance(pick, Pick):
            deadline = now + (pick.timeout_seconds or DEFAULT_TIMEOUT_SECONDS) + 60
            ticket = Ticket(service, pick.revision, stratum(len(request.body)), pick.choices, deadline)
            self._ledger.open(request.id, ticket)
        return pick

    def _pick(self, snapshot: Snapshot, service: Service, headers: Mapping[str, str], now: float) -> Pick | Refusal:
        pods = snapshot.pods.get(service.key, {})
        live: Weights = tuple((name, weight) for name, weight in service.weights if weight > 0 and pods.get(name))
        # Only a client that asks for it by header may meet a canary that has no weight.
        canary_live = bool(service.canary and pods.get(service.canary))
        if not live and not (canary_live and forced(service, headers)):
            return _unready(service)
        revision = self.splits.choose(service, live, headers, canary_live)
        attempts = service.retries + 1
        own = self._order(pods[revision], attempts, now)
        spare: list[Pod] = []
        if len(own) < attempts:
            rest = [pod for name, _ in live if name != revision for pod in pods[name]]
            spare = self._order(rest, attempts - len(own), now)
        chosen = candidates(own, spare, attempts)
        return Pick(revision, tuple(chosen), service.timeout_seconds, service.retries)

    def _order(self, pods: list[Pod] | tuple[Pod, ...], count: int, now: float) -> list[Pod]:
        return order(
            pods,
            lambda pod: self._ledger.in_flight(pod) + self._queue(pod, now),
            lambda pod: self._ledger.ejected(pod, now),
            count,
            self._rng,
        )


def stratum(body_bytes: int) -> str:
    """The prompt-length class of a request, by its body's size: s < 1 KiB, m < 8 KiB, l above."""
    if body_bytes < 1024:
        return "s"
    return "m" if body_bytes < 8192 else "l"


def _unready(service: Service) -> Refusal:
    name = f"{service.namespace}/{service.name}"
    if not service.weights:
        message, code = f"InferenceService {name} is not ready: no revision serves yet", "service_not_ready"
    else:
        message, code = f"InferenceService {name} has no ready pod", "no_ready_pod"
    return Refusal(503, "server_error", code, message, retry_after=RETRY_AFTER_SECONDS, service=service.key)
