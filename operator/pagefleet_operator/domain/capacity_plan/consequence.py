"""What measured numbers mean in replicas, by the arithmetic of the plan itself.

A load of `rate` requests per second with `output` tokens each needs rate x output / peak replicas, where the peak is the most that a
replica generates. A replica that generates less than planned at the planned concurrency has a peak that is lower in proportion. One whose KV
cache has no room for the planned concurrency runs fewer requests at once, and generates fewer tokens in proportion at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_operator.domain.spec.capacity_plan import Assumption, CapacityPlan

ROUNDED = 0.99  # a need that is above a whole number by less than a hundredth: the numbers of a plan are rounded
Numbers = Mapping[Assumption, float]


@dataclass(frozen=True)
class Consequence:
    """Replicas for the planned load: as planned, and by what is measured."""

    planned: int
    needed: int


def consequence(plan: CapacityPlan, measured: Numbers) -> Consequence | None:
    """`measured` has the numbers that are not as planned. None where the plan has too few numbers to say what they mean."""
    numbers = {**plan.planned, **measured}
    by_rate_then, by_rate = _by_rate(plan, plan.planned), _by_rate(plan, numbers)
    shrunk = _room(plan, plan.planned) / _room(plan, numbers)
    if by_rate is None or by_rate_then is None:
        if plan.replicas is None or not {Assumption.KV_CACHE, Assumption.KV_TOKENS} & set(measured):
            return None
        return Consequence(plan.replicas, _whole(plan.replicas * shrunk))
    replicas = plan.replicas if plan.replicas is not None else _whole(by_rate_then)
    if replicas <= _whole(by_rate_then):
        return Consequence(replicas, _whole(by_rate))
    # The plan has more than its rate needs: for users at once, or for chance. Of these, fewer fit as the room shrinks.
    return Consequence(replicas, _whole(max(by_rate, replicas * shrunk)))


def _by_rate(plan: CapacityPlan, numbers: Numbers) -> float | None:
    """Replicas, not rounded."""
    rate, output = numbers.get(Assumption.RATE), numbers.get(Assumption.OUTPUT_TOKENS)
    throughput = numbers.get(Assumption.THROUGHPUT)
    if rate is None or output is None or throughput is None:
        return None
    planned = plan.planned[Assumption.THROUGHPUT]
    peak = (plan.peak_throughput or planned) * throughput / planned
    return rate * output / (max(peak, 1e-9) * _room(plan, numbers))


def _room(plan: CapacityPlan, numbers: Numbers) -> float:
    """The part of the planned concurrency that the KV cache has room for, at most 1."""
    cache, each = numbers.get(Assumption.KV_CACHE), numbers.get(Assumption.KV_TOKENS)
    if cache is None or each is None or plan.concurrency is None:
        return 1.0
    fitting = max(cache - plan.shared_tokens, each) / max(each, 1e-9)
    return max(1e-9, min(1.0, fitting / plan.concurrency))


def _whole(replicas: float) -> int:
    return max(1, math.ceil(ROUNDED * replicas))
