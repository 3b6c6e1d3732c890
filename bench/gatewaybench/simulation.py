"""Discrete-event comparison of picking policies: simulated engines, one trace, virtual time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, pstdev

from bench.gatewaybench.engine import DECODE_SECONDS, PREFILL_SECONDS, Engine, Job
from bench.gatewaybench.peers import Policy
from bench.gatewaybench.trace import Arrival

ENGINES = 8
# Of two kinds of pods: four as everywhere, and four that are half as fast.
SPEEDS = (1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5)
WARM = 0.2  # of the trace, from its start, is not counted: caches are cold in it


def unequal() -> list[Engine]:
    """Return a fleet of two kinds of engines."""
    return [Engine(speed) for speed in SPEEDS]


@dataclass(frozen=True)
class Result:
    """Seconds to the first token, the share of prompt tokens that a prefix cache held, and the coefficient of variation of the
    engines' work: the seconds that the prompts and answers of each took to compute."""

    p50: float
    p95: float
    hit_rate: float
    load_cv: float


def simulate(policy: Policy, arrivals: Sequence[Arrival], fleet: Sequence[Engine] | None = None) -> Result:
    """`fleet`: the engines; eight equal ones when omitted."""
    fleet = fleet or [Engine() for _ in range(ENGINES)]
    jobs, chosen = list[Job](), list[int]()
    scrape_at, index = 0.0, 0
    while index < len(arrivals) or any(engine.wake is not None for engine in fleet):
        arriving = arrivals[index].at if index < len(arrivals) else math.inf
        waking, turn = min((math.inf if engine.wake is None else engine.wake, i) for i, engine in enumerate(fleet))
        now = min(arriving, waking)
        while scrape_at <= now:
            policy.scrape(fleet, scrape_at)
            scrape_at += policy.period
        if arriving <= waking:
            arrival = arrivals[index]
            job = Job(index, now, arrival.prompt_tokens, arrival.output_tokens, arrival.blocks)
            jobs.append(job)
            chosen.append(policy.choose(arrival, job, now))
            fleet[chosen[-1]].put(job, now)
            index += 1
        else:
            ended = fleet[turn].step(now)
            for job in fleet[turn].started:
                policy.started(job)
            for job in ended:
                policy.ended(job)
    first = round(len(jobs) * WARM)
    counted, work = jobs[first:], [0.0] * len(fleet)
    for job, turn in zip(counted, chosen[first:], strict=True):
        tokens = (job.prompt_tokens - job.cached) * PREFILL_SECONDS + job.output_tokens * DECODE_SECONDS
        work[turn] += tokens / fleet[turn].speed
    waits = sorted(job.first_token - job.arrived for job in counted)
    hits = sum(job.cached for job in counted) / sum(job.prompt_tokens for job in counted)
    return Result(waits[len(waits) // 2], waits[math.ceil(0.95 * len(waits)) - 1], hits, pstdev(work) / mean(work))
