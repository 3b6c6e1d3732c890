"""The inflow: the tokens per second that arrive, and the tokens of a request, by gateways' counts and replicas' readings.

A clear rise and a clear fall of arrivals are distinguished from noise. Tokens that replicas generate beyond those that
arrivals ask for make up for a shortage, and are subtracted. Decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad

STALE_LOAD = 30.0
NEWEST = ((2, 1.5), (1, 2.5))  # steps, and the standard deviations that are subtracted from their count
STEPS_BEFORE, SURE_RISE = 6, 3.0  # the steps that a rise is compared with, and the standard deviations of their count
CLEAR = 1.25  # times the usual rate
FALLEN_SECONDS, ARRIVALS_SECONDS = 30.0, 60.0  # the present arrivals are these: after a clear fall, and otherwise
MIN_REQUESTS = 10.0


@dataclass(frozen=True)
class Flow:
    """Tokens per second that arrive, and the tokens of one request (None when they are not known)."""

    tokens: float
    each: float | None


def flow(load: ServiceLoad | None, recent: Sequence[Sample], past: Sequence[Sample], seconds: float) -> Flow:
    """The larger of two flows. `recent` ends now; `past` are readings, and none of them is an estimate.

    The first is the tokens that the replicas generate, without those that make up for a shortage. The second is the rate
    of arrivals times the tokens of a request so far. The rate is the highest of the last `seconds`, of the newest steps
    (NEWEST), and of a clear rise that is extended to the present.
    """
    generated = sum((s.load.tokens or 0.0) * s.serving / s.fresh for s in recent) / len(recent)
    now = recent[-1].time
    each = _tokens_each(load, past, now) if load is not None and load.age <= STALE_LOAD else None
    if load is None or each is None:
        return Flow(generated, None)
    return Flow(max(generated - each * _shrinking(recent), each * rate(load, seconds)), each)


def rate(load: ServiceLoad, seconds: float) -> float:
    """Arrivals per second now: the highest of the last `seconds`, of the newest steps, and of a clear rise; 0 without any count."""
    last = load.arrivals[-max(1, round(seconds / load.step)) :]
    if not last:
        return 0.0
    return max(sum(last) / len(last), _rising(load), *(_surely(load, count, less) for count, less in NEWEST))


def _tokens_each(load: ServiceLoad, past: Sequence[Sample], now: float) -> float | None:
    """The tokens of a request, from the requests that ended while replicas were read, in the time that arrivals cover."""
    begin = now - len(load.arrivals) * load.step
    arrived = [0.0, *accumulate(rate * load.step for rate in load.arrivals)]
    ended = tokens = 0.0
    for fresh, group in groupby((s for s in past if s.time >= begin), key=lambda s: s.fresh > 0):
        read = list(group)
        if fresh:
            first, last = (min(len(load.arrivals), round((s.time - begin) / load.step)) for s in (read[0], read[-1]))
            ended += arrived[last] - arrived[first] + _in_flight(read[0]) - _in_flight(read[-1])
            tokens += sum((b.load.tokens or 0.0) * b.serving / b.fresh * (b.time - a.time) for a, b in pairwise(read))
    return tokens / ended if ended >= MIN_REQUESTS else None


def seconds_each(load: ServiceLoad, past: Sequence[Sample]) -> float:
    """Seconds that a request is in the replicas: those there are over those that arrive (Little's law); 0 when too few have arrived."""
    counted = len(load.arrivals) * load.step
    read = [s for s in past if s.fresh and s.time >= past[-1].time - counted]
    steps = round((read[-1].time - read[0].time) / load.step) if read else 0
    arrived = load.step * sum(load.arrivals[-steps:]) if steps else 0.0
    seen = sum(_in_flight(newer) * (newer.time - older.time) for older, newer in pairwise(read))
    return seen / arrived if arrived >= MIN_REQUESTS else 0.0


def _in_flight(sample: Sample) -> float:
    return (sample.load.running + sample.load.waiting) * sample.serving / sample.fresh


def _shrinking(recent: Sequence[Sample]) -> float:
    """Requests per second by which the requests in the replicas become fewer, because more end than arrive; 0 otherwise.

    The requests of a replica that was removed leave the sum as well, but they have not ended.
    """
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
    """Requests per second at present while they clearly rise, 0 otherwise.

    The rise of the newest step is extended over the time since the middle of that step.
    """
    *earlier, last, newest = (0.0, 0.0, *load.arrivals)
    usual = _expected(earlier[-STEPS_BEFORE:])
    if newest < CLEAR * usual + SURE_RISE * math.sqrt(usual / load.step):
        return 0.0
    return newest + max(0.0, newest - last) * (load.age / load.step + 0.5)


def _expected(before: Sequence[float]) -> float:
    """The rate of the step after the next, by those before: their mean, or more where the line through them leads to more.

    What continues a trend is no jump, and is not extended a second time.
    """
    count, mean = len(before), sum(before) / len(before)
    middle, spread = (count - 1) / 2, count * (count**2 - 1) / 12
    slope = sum((index - middle) * one for index, one in enumerate(before)) / spread if spread else 0.0
    return mean + max(0.0, slope) * (count + 1 - middle)


def fallen(load: ServiceLoad | None, window: float, scaling: Scaling) -> bool:
    """Whether the arrivals of the last half minute are clearly fewer than those of the window before it."""
    if load is None or load.age > STALE_LOAD or scaling.stabilization is not None:
        return False
    count = round(FALLEN_SECONDS / load.step)
    before = load.arrivals[-count - max(1, round(window / load.step)) : -count]
    usual = FALLEN_SECONDS * sum(before) / max(1, len(before))
    newest = load.step * sum(load.arrivals[-count:])
    return newest < usual / CLEAR - SURE_RISE * math.sqrt(usual)


def highest(load: ServiceLoad | None, flow: Flow, seconds: float) -> float:
    """Tokens per second that the busiest minute of arrivals within `seconds` asked for.

    An increase was decided on that minute, or would have been with fewer replicas. The result is never below `flow`; it
    is 0 when arrivals are not known.
    """
    if load is None or flow.each is None:
        return 0.0
    count = round(ARRIVALS_SECONDS / load.step)
    sums = [0.0, *accumulate(load.arrivals[-max(count, round(seconds / load.step)) :])]
    busiest = max((after - before for before, after in zip(sums, sums[count:], strict=False)), default=0.0)
    return max(flow.tokens, flow.each * busiest / count)
