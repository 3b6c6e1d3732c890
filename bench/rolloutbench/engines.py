"""Engines in virtual time: prompts one after the other as they came, answers together with them, a prefix cache.

A running answer slows the prompts and the other answers (continuous batching shares each step). The model is coarse on
purpose: it has the queues and the batches that make one replica of a canary look slower than a pool.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bench.rolloutbench.scenario import Scenario

PREFIX_TOKENS, PREFIXES = 512, 40  # of a prompt; how many different ones there are
MEAN_TOKENS, SIGMA_TOKENS = 512.0, 0.8  # of a prompt after its prefix: lognormal
SIGMA_SECONDS = 0.25  # of equal prompts: lognormal
INTERFERENCE = 0.03  # a running answer slows the others by this share
FIXED_SECONDS = 0.01  # of a prompt, whatever its length
SIGMA_ANSWER = 0.6
FAILURE_SECONDS = 0.01  # from a prompt's turn to its failure


class Request:
    """A request on its way. Times are on the world's clock; `first` and `end` are None until they happen."""

    __slots__ = (
        "answer",
        "at",
        "end",
        "engine",
        "first",
        "gateway",
        "id",
        "outcome",
        "prefix",
        "streams",
        "tokens",
        "uncached",
    )

    def __init__(self, number: int, at: float, gateway: int, prefix: int, tokens: float, streams: bool = True) -> None:
        self.id, self.at, self.gateway, self.prefix, self.tokens = str(number), at, gateway, prefix, tokens
        self.streams = streams
        self.engine: Engine | None = None
        self.uncached = 0.0  # tokens that the engine had to compute
        self.answer = 0.0
        self.first: float | None = None
        self.end: float | None = None
        self.outcome = ""  # answered | failed | left


@dataclass(frozen=True)
class Physics:
    """How fast an engine is. `draws` are random numbers for the engines alone, so that the traffic stays the same."""

    scenario: Scenario
    tokens_per_second: float
    draws: random.Random


def physics(scenario: Scenario, seed: str) -> Physics:
    """Return an engine's speed for the scenario's utilisation."""
    per_engine = scenario.rate / scenario.replicas
    mean = scenario.service_seconds if scenario.utilisation is None else scenario.utilisation / per_engine
    slowed = 1 + INTERFERENCE * running(per_engine, scenario.answer_seconds)
    # A mean without room for the fixed part: the engine is then as fast as it can be told apart.
    return Physics(scenario, MEAN_TOKENS * slowed / max(mean - FIXED_SECONDS * slowed, 1e-3), random.Random(seed))


def running(per_engine: float, answer_seconds: float) -> float:
    """Return the mean number of answers that run on an engine which gets so many requests a second."""
    count = per_engine * answer_seconds
    for _ in range(20):
        count = per_engine * answer_seconds * (1 + INTERFERENCE * count)
    return count


class Engine:
    """One pod's engine. `schedule(at, call)` adds a call to the world's events. `on_first` is called with each request that gets its
    first token, and `on_end` with each that ends."""

    def __init__(
        self,
        name: str,
        group: str,
        physics: Physics,
        schedule: Callable[[float, Callable[[float], None]], None],
        reports: tuple[Callable[[Request, float], None], Callable[[Request, float], None]],
    ) -> None:
        self.name, self.group, self.running, self.busy_seconds = name, group, 0, 0.0
        self.caching, self.born = True, 0.0
        self.since = math.inf  # when its regression begins; inf: it has none
        self._physics, self._schedule = physics, schedule
        self._on_first, self._on_end = reports
        self._queue: deque[Request] = deque()
        self._current: Request | None = None
        self._cached: set[int] = set()
        self._wave_until, self._next_wave = -math.inf, -math.inf

    @property
    def waiting(self) -> int:
        """Requests without a first token that do not compute."""
        return sum(not request.outcome for request in self._queue)

    @property
    def in_prompt(self) -> bool:
        return self._current is not None

    def put(self, request: Request, now: float) -> None:
        """Take a request."""
        request.engine = self
        self._queue.append(request)
        if self._current is None:
            self._begin(now)

    def _begin(self, now: float) -> None:
        """Compute the oldest prompt whose client is still there."""
        while self._queue:
            request = self._queue.popleft()
            if not request.outcome:
                break
        else:
            self._current = None
            return
        self._current = request
        scenario, draws = self._physics.scenario, self._physics.draws
        regression = scenario.regression
        worse = now >= self.since
        if worse and regression.hangs:
            return  # it stays the current one for ever
        share = scenario.errors + (regression.errors if worse else 0.0)
        fails = draws.random() < share if share else False
        noise = draws.lognormvariate(-(SIGMA_SECONDS**2) / 2, SIGMA_SECONDS)
        tail = worse and regression.tail_share > 0 and draws.random() < regression.tail_share
        if fails:
            self._schedule(now + FAILURE_SECONDS, lambda at: self._failed(request, at))
            return
        request.uncached = request.tokens + (0 if request.prefix in self._cached else PREFIX_TOKENS)
        seconds = request.uncached / self._physics.tokens_per_second * noise + FIXED_SECONDS
        seconds *= (1 + INTERFERENCE * self.running) * self._slowness(now)
        if tail:
            seconds *= regression.tail_factor
        self.busy_seconds += seconds
        self._schedule(now + seconds, lambda at: self._computed(request, at))

    def _computed(self, request: Request, now: float) -> None:
        """Send the first token, and go on with the answer and the next prompt."""
        if self.caching:
            self._cached.add(request.prefix)
        if not request.outcome:
            request.first = now
            self.running += 1
            draws = self._physics.draws
            seconds = self._physics.scenario.answer_seconds * draws.lognormvariate(-(SIGMA_ANSWER**2) / 2, SIGMA_ANSWER)
            seconds *= (1 + INTERFERENCE * self.running) * self._slowness(now)
            self._on_first(request, now)
            self._schedule(now + seconds, lambda at: self._ended(request, at))
        self._begin(now)

    def _ended(self, request: Request, now: float) -> None:
        self.running -= 1
        if not request.outcome:
            request.outcome, request.end = "answered", now
            self._on_end(request, now)

    def _failed(self, request: Request, now: float) -> None:
        if not request.outcome:
            request.outcome, request.end = "failed", now
            self._on_end(request, now)
        self._begin(now)

    def _slowness(self, now: float) -> float:
        """Return how many times longer everything takes now, by the regression and by a neighbour."""
        scenario, factor = self._physics.scenario, 1.0
        if now >= self.since:
            regression = scenario.regression
            factor = regression.compute * (1 + regression.leak * (now - self.since) / 3600)
        if scenario.waves:
            draws = self._physics.draws
            while self._next_wave <= now:
                if self._next_wave > -math.inf:
                    self._wave_until = self._next_wave + draws.expovariate(1 / scenario.wave_seconds)
                begin = now if self._next_wave == -math.inf else max(self._wave_until, self._next_wave)
                self._next_wave = begin + draws.expovariate(scenario.waves / 3600)
            if now < self._wave_until:
                factor *= scenario.wave_factor
        return factor
