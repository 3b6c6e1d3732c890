"""The cost of a pod for one request, as the gateways' picker has it (`pagefleet_gateway.picking.score`) where no prefix is shared.

The simulator does not import the gateway, so the rule stands here a second time; a test holds the two against each other.
A request's answer counts as EXPECTED_OUTPUT tokens, because a gateway does not know how long it will be. The prompts that a pod
has still to compute are estimated as in `pagefleet_gateway.picking.prompts.backlog`: they count from the pick on, and are worked off at
the throughput that the first tokens of requests that have ended have shown.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from pagefleet_simulator.fleet.pods import Pod
from pagefleet_simulator.fleet.request import Request

INTERFERENCE = 1 / 8  # tokens of delay for the next first token by each token in flight
PRESSURE_FROM = 0.8  # share of KV pages in use above which a pod begins to hold requests back
TIES_PER_REQUEST = 8  # costs that differ by less than 1/8 of the request's tokens are equal
EXPECTED_OUTPUT = 256  # tokens
MANY, BY_LOT = 32, 12  # of more than MANY pods BY_LOT are looked at, by lot
GAIN_QUICKER, GAIN_SLOWER = 0.1, 0.01  # how far the throughput follows a quicker and a slower answer
MIN_TOKENS = 256  # the time of a shorter prompt is mostly not its computation


@dataclass(slots=True)
class Sent:
    """What was sent to a pod: the requests and tokens in flight, and the prompt tokens that it had still to compute at `at`."""

    requests: int = 0
    tokens: int = 0
    level: float = 0.0
    at: float = 0.0

    def backlog(self, throughput: float, now: float) -> float:
        """Prompt tokens that the pod has still to compute, at so many a second; none while the throughput is not known (0)."""
        return max(0.0, self.level - (now - self.at) * throughput) if throughput else 0.0


NOTHING = Sent()


def cost(tokens: float, backlog: float, waiting: int, usage: float, typical: float) -> float:
    """The tokens of work before a request's first token, its own prompt aside.

    `tokens` are in flight on the pod, `waiting` requests of `typical` tokens are in its queue, `usage` is the share of its KV pages.
    """
    pressure = (min(usage, 1.0) - PRESSURE_FROM) / (1 - PRESSURE_FROM) if usage > PRESSURE_FROM else 0.0
    return INTERFERENCE * (tokens + waiting * typical) + backlog + pressure * typical


class Picking:
    """Counts what is sent to pods, and chooses the cheapest of them."""

    def __init__(self, random: random.Random) -> None:
        self._random = random
        self._sent: dict[Pod, Sent] = {}
        self._throughput = 0.0  # prompt tokens a second; 0 before the first answer

    def best(self, pods: Sequence[Pod], request: Request, now: float) -> Pod:
        """The cheapest of the pods, which are one at least; by lot among (nearly) equals."""
        if len(pods) > MANY:
            pods = self._random.sample(pods, BY_LOT)
        draw, tokens, throughput = self._random.random, _tokens(request), self._throughput
        sent = [self._sent.get(pod, NOTHING) for pod in pods]
        requests = sum([one.requests for one in sent])
        typical = sum([one.tokens for one in sent]) / requests if requests else tokens
        tie, keys = tokens / TIES_PER_REQUEST, []
        for pod, one in zip(pods, sent, strict=True):
            engine = pod.engine
            usage = engine.used / engine.profile.capacity
            found = cost(one.tokens, one.backlog(throughput, now), len(engine.waiting), usage, typical)
            keys.append(((request.arrival.prompt + found) // tie, draw()))
        return pods[keys.index(min(keys))]

    def backlog(self, pod: Pod, now: float) -> float:
        """Prompt tokens that the pod has still to compute, as far as is known."""
        return self._sent.get(pod, NOTHING).backlog(self._throughput, now)

    def send(self, pod: Pod, request: Request, now: float) -> None:
        """Count a request that is sent to the pod."""
        sent = self._sent.setdefault(pod, Sent())
        sent.level = self.backlog(pod, now) + request.arrival.prompt
        sent.at = request.sent = now
        sent.requests += 1
        sent.tokens += _tokens(request)

    def end(self, pod: Pod, request: Request) -> None:
        """Forget a request that has ended, and learn from its first token."""
        sent, prompt, seconds = self._sent[pod], request.arrival.prompt, request.first - request.sent
        sent.requests -= 1
        sent.tokens -= _tokens(request)
        if prompt < MIN_TOKENS or seconds <= 0:
            return
        measured, known = prompt / seconds, self._throughput
        gain = GAIN_QUICKER if measured > known else GAIN_SLOWER
        self._throughput = known + gain * (measured - known) if known else measured


def _tokens(request: Request) -> int:
    return request.arrival.prompt + EXPECTED_OUTPUT
