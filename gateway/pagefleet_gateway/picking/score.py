"""Which pods a request should meet, best first: a total function of what was observed of each. Pure.

A pod's cost is the work, in tokens, before the request's first token there: the prompts it has still to compute
(backlog.py), a part of what is in flight and of what other gateways sent, what KV pressure will make it wait for, and the
part of the prompt that it has not cached. All in one unit; INTERFERENCE was chosen with bench/gateway_picking.py. Affinity (a cached prefix, a loaded
adapter) is a credit against that work, and only for a pod with at most 1.25 times the mean load (Mirrokni,
Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018): it can never make a hot spot.
In-flight work is counted at the pick itself, not at the next scrape, so a crowd cannot run to one pod.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

BOUND = 1.25  # times the mean in-flight tokens; above it affinity does not count
PRESSURE_FROM = 0.8  # share of KV pages in use above which a pod begins to hold requests back
INTERFERENCE = 1 / 8  # by how many tokens one in flight delays the next first token: most of it is decode
ADAPTER_TOKENS = 2000  # work that loading an adapter costs, about
MOST = 1e12
ALIKE = 8  # costs nearer than 1/8 of the request's own tokens are equal

T = TypeVar("T")


# Not frozen: that triples the cost of making one, and one is made for every pod at every request.
@dataclass(slots=True)
class Observation:
    """One pod as the picker sees it for one request. Anything may be wrong: it is clamped, never refused."""

    in_flight_tokens: float = 0.0  # of this gateway's requests, counted to the moment
    in_flight: float = 0.0  # this gateway's requests
    foreign: float = 0.0  # other gateways' requests in the engine, at its last scrape
    waiting: float = 0.0  # requests in the engine's queue, at its last scrape
    kv_usage: float = 0.0  # share of KV pages in use, 0 to 1
    matched_tokens: float = 0.0  # tokens of the prompt that it has probably cached
    adapter: bool = False  # holds the adapter that the request names
    ejected: bool = False  # failed a moment ago
    backlog: float = 0.0  # tokens of prompts sent there that it has probably not computed yet


def costs(pods: Sequence[Observation], prompt_tokens: float, tokens: float) -> list[float]:
    """The cost of each pod, in tokens. `tokens`: the request's prompt and output together."""
    tokens = max(1.0, _sane(tokens))
    prompt = min(_sane(prompt_tokens), tokens)
    own = [_sane(seen.in_flight_tokens) for seen in pods]
    requests = sum(_sane(seen.in_flight) for seen in pods)
    typical = sum(own) / requests if requests >= 1 else tokens
    # Tokens in flight on each: ours as counted, other gateways' as `typical` tokens a request.
    loads = [carried + _sane(seen.foreign) * typical for seen, carried in zip(pods, own, strict=True)]
    limit = BOUND * sum(loads) / len(loads) if loads else 0.0
    found = []
    for seen, carried in zip(pods, loads, strict=True):
        pressure = max(0.0, min(_sane(seen.kv_usage), 1.0) - PRESSURE_FROM) / (1 - PRESSURE_FROM)
        cost = INTERFERENCE * (carried + _sane(seen.waiting) * typical) + pressure * typical + prompt
        cost += _sane(seen.backlog)
        if carried <= limit:
            cost -= min(_sane(seen.matched_tokens), prompt) + (ADAPTER_TOKENS if seen.adapter else 0)
        found.append(cost)
    return found


def rank(
    pods: Sequence[T],
    observe: Callable[[T], Observation],
    prompt_tokens: float,
    tokens: float,
    count: int,
    rng: random.Random,
) -> list[T]:
    """Up to `count` pods, best first: not ejected, then cheapest, then by lot among (nearly) equals."""
    seen = [observe(pod) for pod in pods]
    step = max(1.0, _sane(tokens)) / ALIKE
    keys = [
        (observation.ejected, math.floor(cost / step), rng.random())
        for observation, cost in zip(seen, costs(seen, prompt_tokens, tokens), strict=True)
    ]
    return [pods[index] for index in heapq.nsmallest(count, range(len(pods)), key=keys.__getitem__)]


def _sane(value: float) -> float:
    """A count that can be reckoned with: finite and not below 0."""
    if 0.0 <= value <= MOST:  # nearly always; false for NaN
        return value
    return MOST if MOST < value < math.inf else 0.0
