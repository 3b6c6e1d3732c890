"""A gateway in virtual time: the shipped picker, ledger, access-log reader and windows, without Envoy and without a clock.

Events happen at the times that a test gives them. Clients arrive, leave and read as `Clients` says, and an engine answers
after the seconds that a revision's draw gives.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from support.virtual.events import Events

from pagefleet_gateway.cluster.readings import Readings
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.holding.holding import Holding
from pagefleet_gateway.measuring import access_log
from pagefleet_gateway.measuring.access_log import Completion, LogLine
from pagefleet_gateway.measuring.counting import Counting
from pagefleet_gateway.measuring.metrics import Metrics
from pagefleet_gateway.measuring.windows import Windows
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.picker import Picker
from pagefleet_operator.domain.status.gateway_slices import slices
from pagefleet_operator.domain.status.observation import Slice

PATH, NAMESPACE, NAME = "/team/chat/v1/completions", "team", "chat"
STABLE, CANARY = "s", "c"


class VirtualGateway:
    """`pods` are the names of each revision's pods, or how many there are. Requests are named r1, r2, ... in the order in
    which they were sent."""

    def __init__(
        self, seed: int = 7, offset: float = 0.0, pods: int | Mapping[str, Sequence[str]] = 2, **service: object
    ) -> None:
        self.state, self.ledger = State(), Ledger()
        self.readings = Readings(self.ledger.known_in_flight)
        self.picker = Picker(self.state, self.ledger, random.Random(seed), self.readings)
        self.windows = Windows(f"gateway-{seed}", self.ledger, offset)
        self.now = 0.0
        self.holding = Holding(self.picker, lambda: self.now, lambda _: None)
        self.metrics = Metrics(self.ledger, self.holding)
        self.counting = Counting(self.ledger, self.windows, self.metrics, lambda: self.now)
        self.holding.on_left = self.counting.record_left
        names = {name: numbered(name, pods) for name in (STABLE, CANARY)} if isinstance(pods, int) else pods
        self.pods = [
            Pod(f"uid-{pod}", pod, NAMESPACE, NAME, revision, f"10.0.{place}.{index}:8000")
            for place, (revision, own) in enumerate(names.items())
            for index, pod in enumerate(own)
        ]
        self.state.replace_pods(self.pods)
        self.state.confirm(self.pods)
        options: dict[str, object] = {"weights": ((STABLE, 50), (CANARY, 50)), "canary": CANARY, **service}
        self.state.put_service(Service(NAMESPACE, NAME, "smol", **options))  # type: ignore[arg-type]
        self.count = 0
        self.windows.tick(0.0)

    def send(self, now: float, prompt: str = "x" * 400, *, stream: bool = True, **headers: str) -> tuple[str, Pick]:
        """Send a request; return its id and where it goes."""
        self.count += 1
        self.windows.tick(now)
        body = json.dumps({"prompt": prompt, "stream": stream}).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        pick = self.picker.decide(Request(f"r{self.count}", "POST", PATH, names, body), now)
        if not isinstance(pick, Pick):
            raise TypeError(f"refused: {pick}")
        return f"r{self.count}", pick

    def first_token(self, request: str, seconds: float, now: float, upstream: str = "") -> None:
        """Report a first token; by default of the first choice."""
        self.now = now
        ticket = self.ledger.ticket(request)
        address = upstream or (ticket.choices[0].address if ticket is not None else "")
        self.counting.record_first_token(request, seconds, address)

    def end(self, request: str, now: float, **fields: object) -> Completion:
        """End a request with a log line; by default a good answer of its first choice."""
        ticket = self.ledger.ticket(request)
        assert ticket is not None
        line = {
            "id": request, "start": "0", "code": 200, "flags": "-", "attempts": 1, "upstream": ticket.choices[0].address,
            "duration_us": 1e6 * (now - ticket.opened), "content_type": "text/event-stream" if ticket.streams else "",
        }  # fmt: skip
        parsed = access_log.parse(json.dumps(line | fields).encode())
        assert isinstance(parsed, LogLine)
        self.now = now
        completion = self.counting.complete(parsed)
        assert completion is not None
        return completion

    def leave(self, request: str, now: float) -> None:
        """The client goes away."""
        self.end(request, now, code=0, flags="DC", duration_us=None)

    def document(self, now: float, since: float = 0.0) -> dict[str, object]:
        """The answer of /windows, as it arrives."""
        answer: dict[str, object] = msgspec.json.decode(
            msgspec.json.encode(self.windows.document(NAMESPACE, NAME, since, now) | {"held": 0})
        )
        return answer

    def slices(self, now: float) -> list[Slice]:
        """The slices as the operator reads them."""
        return list(slices(self.document(now)))


def numbered(revision: str, count: int) -> list[str]:
    """The names of a revision's pods."""
    return [f"pod-{revision}{index}" for index in range(count)]


@dataclass(frozen=True)
class Clients:
    """Seconds after which a client leaves if no token has come (None: never), seconds that reading takes, and headers.

    A client that left asks again at once, `retries` times. `burden` is by how much longer a request with headers takes its engine.
    """

    leave_after: Callable[[random.Random], float | None] = lambda _: None
    reading: Callable[[random.Random], float] = lambda _: 0.5
    headers: Callable[[random.Random], dict[str, str]] = lambda _: {}
    burden: float = 1.0
    retries: int = 0


class Traffic:
    """Poisson arrivals at `rate` per second; `ttft` draws the time to the first token of a revision's answer."""

    def __init__(
        self, gateway: VirtualGateway, ttft: dict[str, Callable[[random.Random], float]], rate: float, seed: int,
        clients: Clients | None = None,
    ) -> None:  # fmt: skip
        self.gateway, self._ttft, self._rate, self._clients = gateway, ttft, rate, clients or Clients()
        self._random = random.Random(seed)
        self._events = Events()
        self.felt: list[
            tuple[str, float, bool]
        ] = []  # by revision: seconds that a client waited, and whether it got a token
        self.now = 0.0
        self._events.at(self._random.expovariate(rate), self._arrive)

    def stop(self) -> None:
        """Let nobody come any more."""
        self._rate = 0.0

    def run(self, until: float) -> None:
        """Play all events up to a time, and close the slices as the gateway's own timer does."""
        for time, act in self._events.due(until):
            self._advance(time)
            act(time)
        self._advance(until)

    def _advance(self, time: float) -> None:
        while self.now + 0.5 < time:
            self.now += 0.5
            self.gateway.windows.tick(self.now)
        self.now = time

    def _arrive(self, now: float) -> None:
        if not self._rate:
            return
        self._events.at(now + self._random.expovariate(self._rate), self._arrive)
        self._ask(now, self._clients.retries)

    def _ask(self, now: float, retries: int) -> None:
        headers = self._clients.headers(self._random)
        request, pick = self.gateway.send(now, f"{self._random.random()}" * 20, **headers)
        wait = self._ttft[pick.revision](self._random) * (self._clients.burden if headers else 1.0)
        limit, reading = self._clients.leave_after(self._random), self._clients.reading(self._random)
        leaves = limit is not None and limit < wait
        self.felt.append((pick.revision, min(wait, limit) if limit is not None else wait, not leaves))
        if limit is not None and leaves:
            self._events.at(now + limit, lambda time: self._leave(request, retries, time))
            return
        self._events.at(now + wait, lambda time: self.gateway.first_token(request, wait, time))
        self._events.at(now + wait + reading, lambda time: self._end(request, time))

    def _leave(self, request: str, retries: int, now: float) -> None:
        self.gateway.leave(request, now)
        if retries:
            self._ask(now, retries - 1)

    def _end(self, request: str, now: float) -> None:
        self.gateway.end(request, now)
