"""Policies that choose a simulated request's engine: round robin, llm-d's published scoring, the gateway's own picker.

Each has only the inputs that it would have in a fleet: its own requests, and the engines' gauges at its scrapes.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Protocol

from bench.gatewaybench.engine import Engine, Job
from bench.gatewaybench.trace import Arrival

from pagefleet_gateway.cluster.readings import Readings
from pagefleet_gateway.cluster.scrapes import PERIOD_SECONDS
from pagefleet_gateway.cluster.state import Pod, Service, State
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.picker import Pick, Picker, Request
from pagefleet_gateway.picking.prefixes import Prefixes


class Policy(Protocol):
    period: float  # seconds between scrapes

    def choose(self, arrival: Arrival, job: Job, now: float) -> int: ...

    def ended(self, job: Job) -> None: ...

    def scrape(self, engines: Sequence[Engine], now: float) -> None: ...


class RoundRobin:
    period = 1.0

    def __init__(self, count: int) -> None:
        self._turns = itertools.cycle(range(count))

    def choose(self, arrival: Arrival, job: Job, now: float) -> int:
        return next(self._turns)

    def ended(self, job: Job) -> None:
        pass

    def scrape(self, engines: Sequence[Engine], now: float) -> None:
        pass


class Published:
    """llm-d's documented profile: 2 * queue + 2 * (1 - KV usage) + 3 * matched prefix share, highest wins, ties
    by lot; gauges scraped every 50 ms; the queue score runs from 1 (shortest) to 0 (longest).
    """

    period = 0.05

    def __init__(self, count: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self._queue = [0] * count
        self._usage = [0.0] * count
        self._prefixes = Prefixes(capacity=31_250)

    def choose(self, arrival: Arrival, job: Job, now: float) -> int:
        low, high = min(self._queue), max(self._queue)
        scores = []
        for index, (queue, usage) in enumerate(zip(self._queue, self._usage, strict=True)):
            shortness = (high - queue) / (high - low) if high > low else 1.0
            matched = self._prefixes.matched(str(index), job.blocks) / max(1, len(job.blocks))
            scores.append((2 * shortness + 2 * (1 - usage) + 3 * matched, self._rng.random(), index))
        chosen = max(scores)[2]
        self._prefixes.record(str(chosen), job.blocks)
        return chosen

    def ended(self, job: Job) -> None:
        pass

    def scrape(self, engines: Sequence[Engine], now: float) -> None:
        self._queue = [len(engine.waiting) for engine in engines]
        self._usage = [engine.kv_usage for engine in engines]


class Pagefleet:
    """The gateway's own `Picker`, whole: routing, body, ledger, prefixes, readings from Prometheus text."""

    period = PERIOD_SECONDS

    def __init__(self, count: int, seed: int, revisions: str = "") -> None:
        """`revisions`: a letter for each engine, weights as their numbers; "" for one revision."""
        revisions = revisions or "a" * count
        self._pods = [
            Pod(str(index), f"p{index}", "team", "chat", revision, f"10.0.0.{index}:8000")
            for index, revision in enumerate(revisions)
        ]
        state = State()
        state.replace_pods(self._pods)
        state.confirm(self._pods)
        weights = tuple((name, revisions.count(name)) for name in sorted(set(revisions)))
        state.put_service(Service("team", "chat", "m", weights))
        self._ledger = Ledger()
        self._readings = Readings(self._ledger.in_flight)
        self._picker = Picker(state, self._ledger, random.Random(seed), self._readings)

    def choose(self, arrival: Arrival, job: Job, now: float) -> int:
        request = Request(str(job.key), "POST", "/team/chat/v1/completions", {}, arrival.body)
        pick = self._picker.decide(request, now)
        if not isinstance(pick, Pick):
            raise TypeError(f"refused: {pick}")
        return int(pick.choices[0].uid)

    def ended(self, job: Job) -> None:
        # As the access log reports a streamed answer.
        ticket = self._ledger.close(str(job.key))
        if ticket is not None:
            self._ledger.backlogs.record_first_token(
                ticket.choices[0], ticket.uncached_tokens, job.first_token - job.arrived
            )

    def scrape(self, engines: Sequence[Engine], now: float) -> None:
        for pod, engine in zip(self._pods, engines, strict=True):
            text = (
                f"vllm:num_requests_running {engine.running}\nvllm:num_requests_waiting {len(engine.waiting)}\n"
                f"vllm:kv_cache_usage_perc {engine.kv_usage}\n"
            )
            self._readings.put(pod, text.encode(), now)
