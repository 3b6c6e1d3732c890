"""One request's decision: service, revision, pods, or a refusal. No I/O; the time is an argument.

Never waits and never proxies: it names the pods, Envoy does the rest.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pagefleet_gateway.cluster.readings import Readings
from pagefleet_gateway.cluster.state import Pod, Service, ServiceKey, Snapshot, State
from pagefleet_gateway.envoy.stream_timeout import USUAL, Patience, patience
from pagefleet_gateway.limits.api_keys import APIKeys
from pagefleet_gateway.limits.rate_limits import RateLimits
from pagefleet_gateway.picking.deaths import content
from pagefleet_gateway.picking.ledger import Ledger, Ticket
from pagefleet_gateway.picking.prefixes import Prefixes
from pagefleet_gateway.picking.request_cost import BLOCK_TOKENS, Ask, ask_of
from pagefleet_gateway.picking.routing import Refusal, route
from pagefleet_gateway.picking.score import Observation, rank
from pagefleet_gateway.picking.split import Splits, Weights, forced

DEFAULT_TIMEOUT_SECONDS = 600.0
RETRY_AFTER_SECONDS = 5
NO_READY_POD, OVERLOADED = "no_ready_pod", "overloaded"  # refusals that waiting can mend


@dataclass(frozen=True)
class Request:
    """What the picker sees of a request. Header names are lower case."""

    id: str
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""
    subset: frozenset[str] | None = None  # the addresses it may be sent to; None: any


@dataclass(frozen=True)
class Pick:
    revision: str
    choices: tuple[Pod, ...]
    timeout_seconds: float | None  # None: the gateway's default
    retries: int
    fallback: str = ""  # namespace/name of the service that answers in place of the one asked, "" when none does
    mirror: Pod | None = None  # gets a copy, whose answer is thrown away
    patience: Patience = USUAL  # with a silent engine
    key: str = ""  # name of the API key that asked: the key itself goes no further
    usage: bool = False  # the end of its streamed answer says how many tokens it had


@dataclass(frozen=True)
class Admitted:
    """A request whose service is known and whose limits allow it; `arrived` is the picker's steady time."""

    request: Request
    service: Service
    ask: Ask
    arrived: float
    key: str = ""  # name of the API key that asked


class Picker:
    """Holds the draws and the prefixes; reads the state; writes the ledger."""

    def __init__(
        self,
        state: State,
        ledger: Ledger,
        rng: random.Random,
        readings: Readings | None = None,
        keys: Callable[[], APIKeys | None] = lambda: None,
    ) -> None:
        """`keys`: those in force; None when none is asked for."""
        self._keys = keys
        self._state = state
        self._ledger = ledger
        self._rng = rng
        self._readings = readings or Readings(ledger.in_flight)
        self.splits = Splits(rng)
        self.prefixes = Prefixes()
        self._limits = RateLimits()

    def decide(self, request: Request, now: float) -> Pick | Refusal:
        """Choose for a request and open its ticket."""
        admitted = self.admit(request, now)
        return admitted if isinstance(admitted, Refusal) else self.choose(admitted, now)

    def admit(self, request: Request, now: float) -> Admitted | Refusal:
        """Find the request's service and charge its limits: once per request."""
        keys, key = self._keys(), None
        if keys is not None:
            # First of all: who has no key is not told which services there are.
            key = keys.find(request.headers)
            if key is None:
                return UNKNOWN_KEY
        name = key.name if key is not None else ""
        service = route(self._state.snapshot, request.method, request.path, request.body)
        if isinstance(service, Refusal):
            return replace(service, key=name)
        if key is not None and not key.may_ask(service.key):
            return _forbidden(service, name)
        ask = ask_of(request.body)
        limited = service.limits or key is not None
        wait = self._limits.take(service, request.headers, ask.tokens, now, key) if limited else 0.0
        if wait > 0:
            message = f"too many requests or tokens: try again in {math.ceil(wait)} s"
            return replace(_busy(service, "rate_limit_exceeded", message, math.ceil(wait)), key=name)
        return Admitted(request, service, ask, now, name)

    def choose(self, admitted: Admitted, now: float) -> Pick | Refusal:
        """Choose pods and open the request's ticket. May be asked again after a refusal."""
        request, ask = admitted.request, admitted.ask
        snapshot = self._state.snapshot
        service = snapshot.services.get(admitted.service.key, admitted.service)
        pick = self._pick(snapshot, service, request, ask, now)
        # One step only: a fallback's own fallback could lead in a circle.
        other = snapshot.services.get((service.namespace, service.fallback))
        if isinstance(pick, Refusal) and other is not None and other.key != service.key:
            instead = self._pick(snapshot, other, request, ask, now)
            if isinstance(instead, Pick):
                pick, service = replace(instead, fallback=f"{other.namespace}/{other.name}"), other
        known_by = content(service.key, request.body) if isinstance(pick, Pick) else None
        if isinstance(pick, Pick) and (ends := self._ledger.deaths.ends(known_by)):
            wait = self._ledger.deaths.wait(known_by, now)
            pick = _ends_engines(service, ends, wait) if wait else _once(pick)
        if isinstance(pick, Pick):
            deadline = now + (pick.timeout_seconds or DEFAULT_TIMEOUT_SECONDS) + 60
            first = pick.choices[0].uid
            fresh = max(0, ask.prompt_tokens - self.prefixes.matched(first, ask.blocks) * BLOCK_TOKENS)
            tokens = fresh + ask.output_tokens
            self.prefixes.record(first, ask.blocks)
            self._ledger.backlogs.sent(pick.choices[0], fresh, now)
            size, held = stratum(len(request.body)), now - admitted.arrived
            ticket = Ticket(
                service, pick.revision, size, pick.choices, deadline, tokens, held, admitted.key, fresh, known_by
            )
            self._ledger.open(request.id, ticket)
        # The gateway's keys are no engine's business.
        return replace(pick, key=admitted.key) if admitted.key else pick

    def has_pods(self, key: ServiceKey) -> bool:
        return any(self._state.snapshot.pods.get(key, {}).values())

    def sweep(self) -> None:
        """Forget services and pods that are gone."""
        self.splits.keep(self._state.snapshot.services)
        self._ledger.retries.keep(self._state.snapshot.services.keys())
        self.prefixes.keep({pod.uid for pod in self._state.pods})

    def _pick(self, snapshot: Snapshot, service: Service, request: Request, ask: Ask, now: float) -> Pick | Refusal:
        pods, headers = snapshot.pods.get(service.key, {}), request.headers
        if request.subset is not None:
            pods = {name: tuple(pod for pod in own if pod.address in request.subset) for name, own in pods.items()}
        live: Weights = tuple((name, weight) for name, weight in service.weights if weight > 0 and pods.get(name))
        # Only a client that asks for it by header may meet a canary that has no weight.
        canary_live = bool(service.canary and pods.get(service.canary))
        if not live and not (canary_live and forced(service, headers)):
            return _unready(service)
        if service.pod_limit and self._full(service.pod_limit, [pods[name] for name, _ in live]):
            return _busy(service, OVERLOADED, f"every pod of {service.namespace}/{service.name} is at its limit")
        revision = self.splits.choose(service, live, headers, canary_live)
        retries = service.retries if self._ledger.retries.allows(service.key) else 0
        attempts = retries + 1
        own = self._order(pods[revision], ask, attempts, now)
        spare: list[Pod] = []
        if len(own) < attempts:
            rest = [pod for name, _ in live if name != revision for pod in pods[name]]
            spare = self._order(rest, ask, attempts - len(own), now)
        chosen = candidates(own, spare, attempts)
        mirror = self._mirror(service, revision, pods, ask, now)
        return Pick(
            revision,
            tuple(chosen),
            service.timeout_seconds,
            retries,
            mirror=mirror,
            # The first byte of an answer that is not streamed is its end: `timeout` is for that.
            patience=patience(service.first_token_seconds, service.next_token_seconds, retries)
            if ask.streams
            else USUAL,
            usage=ask.streams and ask.usage,
        )

    def _mirror(
        self, service: Service, revision: str, pods: Mapping[str, Sequence[Pod]], ask: Ask, now: float
    ) -> Pod | None:
        """The pod that gets a copy, for `percent` of the requests that the mirrored revision does not get anyway."""
        copied, percent = service.mirror
        own = pods.get(copied, ())
        if not own or copied == revision or self._rng.random() * 100 >= percent:
            return None
        return self._order(own, ask, 1, now)[0]

    def _full(self, limit: int, revisions: Sequence[Sequence[Pod]]) -> bool:
        """Asked of all revisions together, before the draw: a full one must not lose its share to the other."""
        pods = [pod for own in revisions for pod in own]
        return bool(pods) and all(self._ledger.in_flight(pod) >= limit for pod in pods)

    def _order(self, pods: Sequence[Pod], ask: Ask, count: int, now: float) -> list[Pod]:
        return rank(pods, lambda pod: self._observe(pod, ask, now), ask.prompt_tokens, ask.tokens, count, self._rng)

    def _observe(self, pod: Pod, ask: Ask, now: float) -> Observation:
        reading = self._readings.of(pod, now)
        return Observation(
            in_flight_tokens=self._ledger.tokens(pod),
            backlog=self._ledger.backlogs.waiting(pod, now),
            in_flight=self._ledger.in_flight(pod),
            foreign=reading.foreign,
            waiting=reading.waiting,
            kv_usage=reading.kv_usage,
            matched_tokens=self.prefixes.matched(pod.uid, ask.blocks) * BLOCK_TOKENS,
            adapter=ask.model in reading.adapters,
            ejected=self._ledger.ejected(pod, now),
        )


def candidates(own: Sequence[Pod], other: Sequence[Pod], attempts: int) -> list[Pod]:
    """The ordered choices for `attempts` tries: other pods of the revision, else of another one, else again
    the same.

    The list is as long as the attempts, because Envoy has no further host to try once it is used up.
    """
    chosen = list(own[:attempts])
    chosen.extend(other[: attempts - len(chosen)])
    return [chosen[index % len(chosen)] for index in range(attempts)] if chosen else []


def stratum(body_bytes: int) -> str:
    """The prompt-length class of a request, by its body's size: s < 1 KiB, m < 8 KiB, l above."""
    if body_bytes < 1024:
        return "s"
    return "m" if body_bytes < 8192 else "l"


UNKNOWN_KEY = Refusal(
    401,
    "invalid_request_error",
    "invalid_api_key",
    "an API key is required here: send a known one as `Authorization: Bearer <key>`",
)


def _forbidden(service: Service, key: str) -> Refusal:
    message = f"the API key {key} may not ask {service.namespace}/{service.name}"
    return Refusal(403, "permission_error", "service_not_allowed", message, service=service.key, key=key)


def _once(pick: Pick) -> Pick:
    return replace(pick, choices=pick.choices[:1], retries=0, mirror=None)


def _ends_engines(service: Service, ends: int, wait: float) -> Refusal:
    """A status that clients' libraries do not retry."""
    message = (
        f"{ends} engines of {service.namespace}/{service.name} ended while they had this very request: "
        f"it is sent to no other for {math.ceil(wait)} s"
    )
    return Refusal(422, "invalid_request_error", "request_ends_engines", message, service=service.key)


def _busy(service: Service, code: str, message: str, wait: int = 1) -> Refusal:
    return Refusal(429, "rate_limit_error", code, message, retry_after=wait, service=service.key)


def _unready(service: Service) -> Refusal:
    name = f"{service.namespace}/{service.name}"
    if not service.weights:
        message, code = f"InferenceService {name} is not ready: no revision serves yet", "service_not_ready"
    else:
        message, code = f"InferenceService {name} has no ready pod", NO_READY_POD
    return Refusal(503, "server_error", code, message, retry_after=RETRY_AFTER_SECONDS, service=service.key)
