"""What arrives, in tokens per second, and what a request takes: by the gateways' counts, and by the replicas' readings.

Tells a clear rise and a clear fall of arrivals from noise. What replicas generate beyond what arrives makes up for a
shortage, and is taken off. Decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad

STALE_LOAD = 30.0
NEWEST = ((2, 1.5), (1, 2.5))  # steps, and the standard deviations of their count that are taken off
BEFORE, SURE_RISE = 6, 3.0  # steps that a rise is measured against, and the standard deviations of their count
CLEAR = 1.25  # times the usual rate
FALLEN_SECONDS, ARRIVALS_SECONDS = 30.0, 60.0  # of which arrivals are the present ones, after a clear fall and else
LEAST_REQUESTS = 10.0


@dataclass(frozen=True)
class Flow:
    """Tokens per second that arrive, and tokens of a request (None when it is not known)."""

    tokens: float
    each: float | None


def flow(load: ServiceLoad | None, recent: Sequence[Sample], past: Sequence[Sample], seconds: float) -> Flow:
    """What the replicas generate at least, but for what makes up for a shortage; more when the arrivals of the last
    `seconds`, or of the newest two steps or one (NEWEST), will ask for more at the tokens that a request took so far."""
    generated = sum((s.load.tokens or 0.0) * s.serving / s.fresh for s in recent) / len(recent)
    each = _each(load, past) if load is not None and load.age <= STALE_LOAD else None
    if load is None or each is None:
        return Flow(generated, None)
    last = load.arrivals[-max(1, round(seconds / load.step)) :]
    rate = max(sum(last) / len(last), _rising(load), *(_surely(load, count, less) for count, less in NEWEST))
    return Flow(max(generated - each * _ending(recent), each * rate), each)


def _each(load: ServiceLoad, past: Sequence[Sample]) -> float | None:
    """Tokens that a request took, of those that ended while both readings and arrivals cover the time."""
    told = [s for s in past if s.fresh and s.time >= past[-1].time - len(load.arrivals) * load.step]
    steps = load.arrivals[-max(1, round((told[-1].time - told[0].time) / load.step)) :] if told else ()
    ended = sum(steps) * load.step - _inside(told[-1]) + _inside(told[0]) if told else 0.0
    if ended < LEAST_REQUESTS:
        return None
    return sum((b.load.tokens or 0.0) * b.serving / b.fresh * (b.time - a.time) for a, b in pairwise(told)) / ended


def _inside(entry: Sample) -> float:
    return (entry.load.running + entry.load.waiting) * entry.serving / entry.fresh


def _ending(recent: Sequence[Sample]) -> float:
    """Requests per second by which those in the replicas get fewer, because more end than arrive: 0 when they do not.
    A replica that is removed takes its share along: that is no end."""
    pairs = [(a, b) for a, b in pairwise(recent) if b.fresh]
    fewer = sum(
        (a.load.running + a.load.waiting) * min(1.0, b.fresh / a.fresh) - b.load.running - b.load.waiting
        for a, b in pairs
    )
    seconds = recent[-1].time - recent[0].time
    return max(0.0, fewer / seconds) if seconds > 0 else 0.0


def _surely(load: ServiceLoad, newest: int, less: float) -> float:
    """Requests per second of the `newest` steps, less so many standard deviations of their (Poisson) count."""
    steps = load.arrivals[-newest:]
    count = sum(steps) * load.step
    return max(0.0, count - less * math.sqrt(count)) / (load.step * len(steps))


def _rising(load: ServiceLoad) -> float:
    """Requests per second now, where they clearly rise: the newest step extended over the time since its middle. 0 else."""
    *earlier, last, newest = (0.0, 0.0, *load.arrivals)
    before = earlier[-BEFORE:]
    usual = sum(before) / len(before)
    if newest < CLEAR * usual + SURE_RISE * math.sqrt(usual / load.step):
        return 0.0
    return newest + max(0.0, newest - last) * (load.age / load.step + 0.5)


def fallen(load: ServiceLoad | None, window: float, scaling: Scaling) -> bool:
    """Whether arrivals of the last half minute are clearly fewer than those of the window before it."""
    if load is None or load.age > STALE_LOAD or scaling.stabilization is not None:
        return False
    count = round(FALLEN_SECONDS / load.step)
    before = load.arrivals[-count - max(1, round(window / load.step)) : -count]
    usual = FALLEN_SECONDS * sum(before) / max(1, len(before))
    newest = load.step * sum(load.arrivals[-count:])
    return newest < usual / CLEAR - SURE_RISE * math.sqrt(usual)


def highest(load: ServiceLoad | None, flow: Flow, seconds: float) -> float:
    """Tokens per second that the busiest minute of arrivals within `seconds` asked for: what an increase was decided on,
    or would have been with fewer replicas. Never less than `flow` asks for; 0 when arrivals are not known."""
    if load is None or flow.each is None:
        return 0.0
    count = round(ARRIVALS_SECONDS / load.step)
    sums = [0.0, *accumulate(load.arrivals[-max(count, round(seconds / load.step)) :])]
    highest = max((after - before for before, after in zip(sums, sums[count:], strict=False)), default=0.0)
    return max(flow.tokens, flow.each * highest / count)
