"""The pods that are scored for one request, and their order, best first. No I/O; the time is an argument.

Where a revision has many pods, some are scored: scoring takes microseconds for each pod, and a pick must not take milliseconds with a thousand. Some pods by lot find one that is
about as idle as the idlest (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 2001: the benefit
of each further choice falls fast), and those with the longest cached part of the prompt find its prefix.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pagefleet_gateway.cluster.readings import Readings
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.prompts.prefixes import Prefixes
from pagefleet_gateway.picking.prompts.request_cost import RequestCost, block_tokens
from pagefleet_gateway.picking.score import PodLoad, rank

BY_LOT, BY_PREFIX = 12, 4


def shortlist(pods: Sequence[Pod], prefixes: Prefixes, blocks: Sequence[bytes], rng: random.Random) -> Sequence[Pod]:
    """Return the pods to score: all of a few, else BY_LOT of them by lot and BY_PREFIX with the longest cached prefix."""
    if len(pods) <= 2 * (BY_LOT + BY_PREFIX):
        return pods
    cached = prefixes.longest(pods, blocks, BY_PREFIX)
    if len(cached) > BY_PREFIX:
        cached = rng.sample(cached, BY_PREFIX)
    return list({pod.uid: pod for pod in (*cached, *_by_lot(pods, rng))}.values())


def _by_lot(pods: Sequence[Pod], rng: random.Random) -> list[Pod]:
    """Draw BY_LOT of many pods. Each is drawn again where it was drawn already: cheaper than rng.sample for few of many."""
    drawn, draw, many = set[int](), rng.random, len(pods)
    while len(drawn) < BY_LOT:
        drawn.add(int(draw() * many))
    return [pods[index] for index in drawn]


class Ranking:
    """Orders pods by what the ledger, the engines' readings and the prefixes show of them."""

    def __init__(self, ledger: Ledger, readings: Readings, prefixes: Prefixes, rng: random.Random) -> None:
        self._ledger, self._readings, self._prefixes, self._rng = ledger, readings, prefixes, rng

    def choices(self, service: Service, pods: Sequence[Pod], cost: RequestCost, count: int, now: float) -> list[Pod]:
        """Return up to `count` of a revision's pods in the order in which a request tries them: those that are full last."""
        some = shortlist(pods, self._prefixes, cost.blocks, self._rng)
        if all(self._ledger.ejected(pod, now) for pod in some):
            some = pods
        free = self.below_limit(service, some) or self.below_limit(service, pods)
        own = self.best(free, cost, count, now)
        if len(own) < count and len(free) < len(pods):
            own += self.best([pod for pod in pods if pod not in free], cost, count - len(own), now)
        return own

    def below_limit(self, service: Service, pods: Sequence[Pod]) -> Sequence[Pod]:
        """Return the pods that may get one more request, those of all gateways counted."""
        limit = service.pod_limit
        return [pod for pod in pods if self._ledger.known_in_flight(pod) < limit] if limit else pods

    def best(self, pods: Sequence[Pod], cost: RequestCost, count: int, now: float) -> list[Pod]:
        """Return up to `count` of the pods, best first."""
        return rank(pods, lambda pod: self._load(pod, cost, now), cost.prompt_tokens, cost.tokens, count, self._rng)

    def sound(self, pods: Sequence[Pod], cost: RequestCost, now: float) -> Pod | None:
        """Return the best of the pods, which are one at least; None while all that were looked at are ejected."""
        (best,) = self.best(shortlist(pods, self._prefixes, cost.blocks, self._rng), cost, 1, now)
        return None if self._ledger.ejected(best, now) else best

    def _load(self, pod: Pod, cost: RequestCost, now: float) -> PodLoad:
        ledger, reading = self._ledger, self._readings.of(pod, now)
        own, others, backlogs = ledger.own_counts(pod), ledger.others.counts(pod.uid), ledger.backlogs
        return PodLoad(
            in_flight_tokens=own.tokens + others.tokens,
            backlog_tokens=backlogs.tokens(pod, now),
            in_flight_requests=own.requests + others.requests,
            foreign_requests=reading.foreign,
            waiting_requests=reading.waiting,
            kv_usage=reading.kv_usage,
            matched_tokens=block_tokens(self._prefixes.matched(pod.cache, cost.blocks)),
            has_adapter=cost.model in reading.adapters,
            slowness=backlogs.paces.of(pod),
            ejected=ledger.ejected(pod, now),
        )
