"""The order of pods for one request, best first: a total function of each pod's load. Pure.

A pod's cost is the work before the request's first token there, in tokens of a pod of mean speed. It is the sum of
- the prompts that the pod has still to compute (prompts/backlog.py),
- a part of the tokens in flight, of all gateways,
- the wait that KV pressure will cause,
- the part of the prompt that the pod has not cached.
INTERFERENCE was chosen with bench/gateway_picking.py.

Affinity (a cached prefix, a loaded adapter) is a credit against that work. Only a pod with at most 1.25 times the mean load, the
request itself counted, gets it (Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018), or one that has
computed nearly all its prompts, so it can never make a hot spot. In-flight work is counted at the pick itself, not at the next scrape, so a crowd cannot run to one pod.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

MAX_LOAD_RATIO = 1.25  # times the mean in-flight tokens; above it affinity does not count
PRESSURE_FROM = 0.8  # share of KV pages in use above which a pod begins to hold requests back
FREE_BACKLOG = 512  # prompt tokens to compute, some tens of milliseconds: with at most so many a pod delays nobody
INTERFERENCE = 1 / 8  # tokens of delay for the next first token by each token in flight: most of those are decode
ADAPTER_TOKENS = 2000  # about the work of loading an adapter
MAX_COUNT = 1e12
TIES_PER_REQUEST = 8  # costs that differ by less than 1/8 of the request's own tokens are equal

T = TypeVar("T")


# Not frozen: that triples the cost of making one, and one is made for every pod at every request.
@dataclass(slots=True)
class PodLoad:
    """One pod's load as the picker knows it at one request. Any value may be wrong: it is clamped, never refused."""

    in_flight_tokens: float = 0.0  # of the requests of all gateways that tell each other
    in_flight_requests: float = 0.0  # their number
    foreign_requests: float = 0.0  # other requests in the engine, at its last scrape
    waiting_requests: float = 0.0  # in the engine's queue, at its last scrape
    kv_usage: float = 0.0  # share of KV pages in use, 0 to 1
    matched_tokens: float = 0.0  # tokens of the prompt that the pod has probably cached
    has_adapter: bool = False  # the adapter that the request names is loaded
    ejected: bool = False  # the pod failed a moment ago
    backlog_tokens: float = 0.0  # of prompts sent there that the pod has probably not computed yet
    slowness: float = 1.0  # how many times as long as in the other pods a token takes


def costs(loads: Sequence[PodLoad], prompt_tokens: float, tokens: float) -> list[float]:
    """Return the cost of each pod, in tokens. `tokens`: the request's prompt and output together."""
    tokens = max(1.0, _sane(tokens))
    prompt = min(_sane(prompt_tokens), tokens)
    own_tokens = [_sane(load.in_flight_tokens) for load in loads]
    own_requests = sum(_sane(load.in_flight_requests) for load in loads)
    typical = sum(own_tokens) / own_requests if own_requests >= 1 else tokens
    paces = [load.slowness if 0 < load.slowness <= MAX_COUNT else 1.0 for load in loads]
    # Tokens in flight on each pod: as counted, and `typical` tokens for each other request. A slow pod is as loaded as a pod with more.
    in_flight = [
        (own + _sane(load.foreign_requests) * typical) * pace
        for load, own, pace in zip(loads, own_tokens, paces, strict=True)
    ]
    limit = MAX_LOAD_RATIO * (sum(in_flight) + tokens) / len(in_flight) if in_flight else 0.0
    result = []
    for load, pod_tokens, pace in zip(loads, in_flight, paces, strict=True):
        backlog, usage = _sane(load.backlog_tokens), _sane(load.kv_usage)
        cost = INTERFERENCE * _sane(load.waiting_requests) * typical + prompt + backlog
        if usage > PRESSURE_FROM:
            cost += (min(usage, 1.0) - PRESSURE_FROM) / (1 - PRESSURE_FROM) * typical
        credit = 0.0
        if pod_tokens <= limit or backlog <= FREE_BACKLOG:
            cost -= min(_sane(load.matched_tokens), prompt)
            credit = ADAPTER_TOKENS if load.has_adapter else 0
        result.append(INTERFERENCE * pod_tokens + cost * pace - credit)
    return result


def rank(
    pods: Sequence[T],
    load_of: Callable[[T], PodLoad],
    prompt_tokens: float,
    tokens: float,
    count: int,
    rng: random.Random,
) -> list[T]:
    """Return up to `count` pods, best first: not ejected, then cheapest, then by lot among (nearly) equals."""
    loads = [load_of(pod) for pod in pods]
    tie = max(1.0, _sane(tokens)) / TIES_PER_REQUEST
    keys = [
        (load.ejected, math.floor(cost / tie), rng.random())
        for load, cost in zip(loads, costs(loads, prompt_tokens, tokens), strict=True)
    ]
    return [pods[index] for index in heapq.nsmallest(count, range(len(pods)), key=keys.__getitem__)]


def _sane(value: float) -> float:
    """Return `value` as a count that arithmetic can use: finite and not below 0."""
    if 0.0 <= value <= MAX_COUNT:  # nearly always; false for NaN
        return value
    return MAX_COUNT if MAX_COUNT < value < math.inf else 0.0


def candidates(own: Sequence[T], other: Sequence[T], attempts: int) -> list[T]:
    """Return the ordered choices for `attempts` tries: other pods of the revision, else of another one, else again
    the same.

    The list is as long as the attempts, because Envoy has no further host to try once it is used up.
    """
    chosen = list(own[:attempts])
    chosen.extend(other[: attempts - len(chosen)])
    return [chosen[index % len(chosen)] for index in range(attempts)] if chosen else []
