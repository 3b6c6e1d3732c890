"""Pods with queues in virtual time: each computes one prompt after the other, and the requests that run slow it down.

Requests come at random to a `VirtualGateway`, whose picker chooses the pods.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from support.virtual.events import Events
from support.virtual.gateway import VirtualGateway

TOKEN_BYTES = 4  # of a prompt for a token, as the picker estimates
MEAN_TOKENS, SPREAD = 800.0, 0.8  # of the prompts
NOISE = 0.2  # standard deviation of the logarithm of a prompt's time
DECODE_SECONDS = 2.0  # of an answer, on average
INTERFERENCE = 0.02  # by how much a running request lengthens a prompt's time


@dataclass
class _Pod:
    free: float = 0.0  # since when it computes no prompt
    running: int = 0  # requests that had their first token


class QueueTraffic:
    """Poisson arrivals at `rate` per second. A pod computes a prompt in `seconds_per_token`, times its revision's factor."""

    def __init__(
        self, gateway: VirtualGateway, rate: float, seconds_per_token: float, factors: Mapping[str, float], seed: int,
        *, whole: bool = False,
    ) -> None:  # fmt: skip
        """`whole`: clients ask for embeddings, whole answers that end with the prompt."""
        self._whole = whole
        self.gateway, self._rate, self._seconds, self._factors = gateway, rate, seconds_per_token, factors
        self._random = random.Random(seed)
        self._pods: dict[str, _Pod] = {}
        self._events = Events()
        self.sent: dict[str, int] = {}  # requests by revision
        self._events.at(0.0, self._arrive)

    def stop(self) -> None:
        """Let nobody come any more."""
        self._rate = 0.0

    def run(self, until: float) -> None:
        """Play all events up to a time."""
        for time, act in self._events.due(until):
            act(time)
        self.gateway.windows.tick(until)

    def _arrive(self, now: float) -> None:
        if not self._rate:
            return
        draw = self._random
        self._events.at(now + draw.expovariate(self._rate), self._arrive)
        tokens = max(8, round(draw.lognormvariate(math.log(MEAN_TOKENS) - SPREAD**2 / 2, SPREAD)))
        prompt = f"{draw.random():.18f}" + "x" * (TOKEN_BYTES * tokens - 20)
        request, pick = self.gateway.send(now, prompt, stream=not self._whole)
        self.sent[pick.revision] = self.sent.get(pick.revision, 0) + 1
        pod = self._pods.setdefault(pick.choices[0].name, _Pod())
        seconds = 0.01 + tokens * self._seconds * draw.lognormvariate(-(NOISE**2) / 2, NOISE)
        seconds *= (1 + INTERFERENCE * pod.running) * self._factors.get(pick.revision, 1.0)
        pod.free = first = max(now, pod.free) + seconds
        if self._whole:
            self._events.at(first, lambda time: self.gateway.end(request, time) and None)
            return
        end = first + draw.expovariate(1 / DECODE_SECONDS)
        self._events.at(first, lambda time: self._first_token(request, pod, first - now, time))
        self._events.at(end, lambda time: self._end(request, pod, time))

    def _first_token(self, request: str, pod: _Pod, seconds: float, now: float) -> None:
        pod.running += 1
        self.gateway.first_token(request, seconds, now)

    def _end(self, request: str, pod: _Pod, now: float) -> None:
        pod.running -= 1
        self.gateway.end(request, now)
