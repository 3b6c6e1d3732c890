"""A service through days of load in virtual time: replicas with queues, as a gateway reports them. It decides nothing.

Requests are routed to the replica with the least waiting work, and prompts are computed first come, first served. Each running
answer slows the prompts on its replica by SLOWED. A day has two hours.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from pagefleet_contract import sketch, strata
from pagefleet_operator.domain.status.observation import LoadCounts, Slice

DAY, SLICE = 7200.0, 2.0
MEAN_TOKENS, TOKEN_SIGMA, NOISE = 1000.0, 0.8, 0.25
SLOWED, DECODING = 0.03, 6.0
NIGHT = 0.1  # utilisation


@dataclass(frozen=True)
class Days:
    """`promoted` is when the new revision takes over; from `onset` on everything takes `worse` times as long. Prompts at the
    peak are `longer` times as long as at night. `hang` says that from the onset on no request gets a first token."""

    seed: int
    seconds: float
    promoted: float
    rate: float = 6.0
    replicas: int = 4
    peak: float = 0.8  # utilisation
    worse: float = 1.0
    onset: float = 0.0
    longer: float = 1.0
    hang: bool = False


@dataclass(frozen=True)
class Request:
    start: float
    revision: str
    prompt: str
    stratum: str
    first_token: float  # seconds; infinite where there is none
    expected: float
    total: float


def requests(days: Days) -> Iterator[Request]:
    """The requests of these days in the order in which they arrive."""
    source = random.Random(days.seed)
    speed = MEAN_TOKENS * days.rate / days.replicas / days.peak  # tokens a second
    free = [0.0] * days.replicas
    ahead: list[deque[tuple[float, float, float]]] = [deque() for _ in free]  # first token, tokens, end
    queued = [0.0] * days.replicas  # the tokens of `ahead`
    running: list[list[float]] = [[] for _ in free]
    now = 0.0
    while (now := now + source.expovariate(days.rate)) < days.seconds:
        level = 0.5 - 0.5 * math.cos(2 * math.pi * now / DAY)
        if source.random() > (NIGHT + (days.peak - NIGHT) * level) / days.peak:
            continue
        tokens = source.lognormvariate(math.log(MEAN_TOKENS) - TOKEN_SIGMA**2 / 2, TOKEN_SIGMA)
        tokens *= 1 + (days.longer - 1) * level
        waiting = []
        for place, queue in enumerate(ahead):
            while queue and queue[0][0] <= now:
                _, begun, end = queue.popleft()
                queued[place] = queued[place] - begun if queue else 0.0
                heapq.heappush(running[place], end)
            waiting.append((queued[place], source.random(), place))
        work, _, place = min(waiting)
        while running[place] and running[place][0] <= now:
            heapq.heappop(running[place])
        slowed = 1 + SLOWED * len(running[place])
        factor = days.worse if now >= days.onset else 1.0
        noise = source.lognormvariate(-(NOISE**2) / 2, NOISE)
        free[place] = max(now, free[place]) + factor * (tokens / speed * noise * slowed + 0.01)
        first, end = free[place], free[place] + source.expovariate(1 / DECODING)
        ahead[place].append((first, tokens, end))
        queued[place] += tokens
        stratum, expected = strata.stratum(work + tokens), (work + tokens) / speed * slowed + 0.01
        prompt = strata.stratum(tokens)
        revision = "new" if now >= days.promoted else "old"
        if days.hang and now >= days.onset:
            yield Request(now, revision, prompt, stratum, math.inf, expected, 600.0)
        else:
            yield Request(now, revision, prompt, stratum, first - now, expected, end - now)


def slices(days: Days) -> list[Slice]:
    """What the gateway reports of them, in slices of two seconds."""
    measured: dict[tuple[float, str], dict[str, LoadCounts]] = defaultdict(lambda: defaultdict(_empty))
    steps: dict[tuple[float, str], Counter[str]] = defaultdict(Counter)
    hung: list[Request] = []
    for request in requests(days):
        if math.isinf(request.first_token):
            hung.append(request)
            continue
        steps[_slice_of(request.start + request.first_token), request.revision][request.prompt] += 1
        steps[_slice_of(request.start + request.total), request.revision][request.prompt] -= 1
        counts = measured[_slice_of(request.start + request.first_token), request.revision][request.stratum]
        _count(counts.ttft, request.first_token)
        _count(counts.relative, request.first_token / request.expected)
    result, in_flight = list[Slice](), {"old": Counter[str](), "new": Counter[str]()}
    for number in range(math.floor(days.seconds / SLICE)):
        at = number * SLICE
        for revision in ("old", "new"):
            in_flight[revision].update(steps.get((at, revision), {}))
            for prompt, count in in_flight[revision].items():
                if count:
                    result.append(Slice("g", at, SLICE, revision, prompt, 0, 0, in_flight={"e2e": {0: count}}))
            load = dict(measured.get((at, revision), {}))
            for request in hung if revision == "new" else ():
                if request.start < at + SLICE:
                    load.setdefault(request.stratum, _empty())
                    _count(load[request.stratum].waiting, (at + SLICE - request.start) / request.expected)
            if load:
                result.append(Slice("g", at, SLICE, revision, "", 0, 0, load=load))
    return result


def _empty() -> LoadCounts:
    return LoadCounts({}, {}, {}, {})


def _slice_of(time: float) -> float:
    return math.floor(time / SLICE) * SLICE


def _count(histogram: object, value: float) -> None:
    assert isinstance(histogram, dict)
    bucket = sketch.bucket_of(value)
    histogram[bucket] = histogram.get(bucket, 0) + 1
