"""A gateway without Envoy and without request bodies: the shipped picker, ledger, counting and windows in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bench.rolloutbench.engines import PREFIX_TOKENS, PREFIXES, Engine, Request

from pagefleet_gateway.cluster.objects import service_from
from pagefleet_gateway.cluster.readings import Reading, Readings
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.cluster.steps import Steps, finish
from pagefleet_gateway.measuring.access_log import LogLine
from pagefleet_gateway.measuring.counting import Counting
from pagefleet_gateway.measuring.first_tokens import FirstToken
from pagefleet_gateway.measuring.windows import Windows
from pagefleet_gateway.picking.ledger import Ledger, Ticket
from pagefleet_gateway.picking.pick import Admitted
from pagefleet_gateway.picking.pick import Request as GatewayRequest
from pagefleet_gateway.picking.picker import Picker
from pagefleet_gateway.picking.prompts.request_cost import BLOCK_TOKENS, RequestCost
from pagefleet_gateway.picking.routing import Refusal
from pagefleet_gateway.picking.split import sticky_revision
from pagefleet_gateway.sharing.news import Newsroom

EPOCH = 1_750_000_000.0  # the Unix time at which the world's clock is 0
NAMESPACE, NAME = "bench", "chat"
STICKY_HEADER = "x-user"
BLOCKS = tuple(
    tuple(f"{prefix:>8}{block:>8}".encode() for block in range(PREFIX_TOKENS // BLOCK_TOKENS))
    for prefix in range(PREFIXES)
)


class Uncounted:
    """The metrics page of a gateway that nobody scrapes: the windows do not depend on it."""

    class Dropped:
        def inc(self) -> None: ...

    outcomes_dropped = Dropped()

    def record_first_token(self, ticket: Ticket) -> None: ...

    def record_completion(self, completion: object) -> None: ...

    def retain(self, services: object, revisions: object, now: float) -> Steps:
        return iter(())


class ScrapedReadings(Readings):
    """The engines' loads as of the last scrape, without a metrics page as text."""

    def put_load(self, pod: Pod, running: int, waiting: int, now: float) -> None:
        foreign = max(0.0, running + waiting - self._in_flight(pod))
        self._readings[pod.uid] = (Reading(float(running), float(waiting), foreign), now)


class Gateway:
    """One gateway pod; `clock` returns the world's time."""

    def __init__(self, number: int, of: int, seed: str, clock: Callable[[], float]) -> None:
        """The gateway `number` of so many."""
        self.instance, self._clock = f"gateway-{number}", clock
        self.state, self.ledger = State(), Ledger()
        self.ledger.trials.share(of)
        self.readings = ScrapedReadings(self.ledger.known_in_flight)
        self.picker = Picker(self.state, self.ledger, random.Random(f"{seed}/{number}"), self.readings)
        self.newsroom = Newsroom(self.ledger, self.picker.prefixes)
        self.windows = Windows(self.instance, self.ledger, EPOCH)
        self.counting = Counting(self.ledger, self.windows, Uncounted(), clock)  # type: ignore[arg-type]
        self._pods: dict[str, Pod] = {}

    def watch_service(self, spec: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """Take over an InferenceService as the watch would report it."""
        raw = {"metadata": {"namespace": NAMESPACE, "name": NAME}, "spec": spec, "status": status}
        self.service = service_from(raw)
        self.state.put_service(self.service)

    def watch_pods(self, engines: Iterable[Engine]) -> None:
        """Take over the pods, all of them ready."""
        self._pods = {engine.name: _pod(engine) for engine in engines}
        self.state.replace_pods(self._pods.values())
        self.state.confirm(self._pods.values())

    def revision_for(self, user: str) -> str:
        """Return the revision that a user's requests stay with, where the service has a sticky header."""
        weights = tuple((name, weight) for name, weight in self.service.weights if weight)
        return sticky_revision(weights, f"{NAMESPACE}/{NAME}/{user}") if weights else ""

    def send(self, request: Request, user: str = "") -> str | None:
        """Pick a pod for a request and return the pod's name; None when the gateway refuses it."""
        now = self._clock()
        headers = {STICKY_HEADER: user} if user else {}
        asked = GatewayRequest(request.id, "POST", "/v1/chat/completions", headers)
        tokens = PREFIX_TOKENS + max(1, round(request.tokens))
        cost = RequestCost(prompt_tokens=tokens, blocks=BLOCKS[request.prefix], streams=request.streams)
        self.windows.record_arrival(self.service.key, now)
        pick = self.picker.choose(Admitted(asked, self.service, cost, now), now)
        return None if isinstance(pick, Refusal) else pick.choices[0].name

    def forget_prefixes(self, names: Iterable[str]) -> None:
        """Forget what pods have cached: their caches retain nothing."""
        gone = {self._pods[name].cache for name in names if name in self._pods}
        finish(self.picker.prefixes.retain({pod.cache for pod in self._pods.values()} - gone))

    def first_token(self, request: Request, now: float) -> None:
        if not request.streams:
            return
        self.counting.record_report(FirstToken(request.id, now - request.at, _address(request.engine)))

    def end(self, request: Request, now: float) -> None:
        """Read the access-log line of a request that is over."""
        code = {"answered": 200, "failed": 500, "left": 0}[request.outcome]
        flags = frozenset({"DC"} if request.outcome == "left" else ())
        first = None if request.first is None or not request.streams else request.first - request.at
        upstream = "" if request.outcome == "left" else _address(request.engine)
        self.counting.complete(
            LogLine(
                id=request.id,
                started=request.at + EPOCH,
                code=code,
                flags=flags,
                ttft=first,
                duration=now - request.at,
                attempts=1,
                upstream=upstream,
                streamed=request.streams and code == 200,
                fields={},
            )
        )

    def scrape(self, engines: Iterable[Engine], now: float) -> None:
        """Read the engines' loads."""
        for engine in engines:
            pod = self._pods.get(engine.name)
            if pod is not None:
                self.readings.put_load(pod, engine.running + engine.in_prompt, engine.waiting, now)

    def tell(self, others: Sequence[Gateway], now: float) -> None:
        """Tell the other gateways what has changed."""
        if news := self.newsroom.changes(now):
            message = news.message()
            for other in others:
                finish(other.newsroom.take_over(self.instance, message, now))

    def sweep(self) -> None:
        finish(self.counting.sweep(self.state))
        finish(self.picker.sweep(self._clock()))


def _pod(engine: Engine) -> Pod:
    name = engine.name
    return Pod(f"uid-{name}", name, NAMESPACE, NAME, engine.group, _address(engine), container="1")


def _address(engine: Engine | None) -> str:
    return "" if engine is None else f"{engine.name}:8000"
