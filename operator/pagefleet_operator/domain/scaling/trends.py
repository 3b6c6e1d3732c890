"""The trends of sequences and of arrivals, where they stand out of their noise, and what may arrive beyond them. Decides nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pagefleet_operator.domain.scaling.inflow import ARRIVALS_SECONDS, STALE_LOAD
from pagefleet_operator.domain.scaling.replica import running
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad

MIN_TREND_SECONDS, MAX_TREND_SECONDS, ARRIVALS_TREND_SECONDS = 60.0, 300.0, 600.0
SURE, SURE_OF_ARRIVALS = 5.0, 3.0  # standard errors; neighbouring samples of a queue contain the same requests
MIN_POINTS = 5  # of a trend
MAX_GROWTH = 2.0  # times the present value, that a trend may add up to
LATEST_TREND_SECONDS, SURE_OF_LATEST = 180.0, 5.0
CLEAR_RISE = 0.25  # of the present arrivals
# Beyond a trend: within a start of 20 minutes a load may rise to three times what it is. With 2 instead of 3, a wave that begins at a fifth of
# its height outruns the replicas that start; more takes more hours and wins nothing.
MAX_REACH, LONG_START_SECONDS = 3.0, 1200.0
SURE_OF_REACH = 2.0  # standard errors: the upper end of a trend is above it in one of forty cases
KNOWN_SECONDS = 3500.0  # nearly the whole hour of arrivals that gateways' sums hold

Points = Sequence[tuple[float, float]]


def rises(past: Sequence[Sample], load: ServiceLoad | None, startup: float) -> tuple[float, float]:
    """The sequences that come in addition within one start-up time, and the factor by which arrivals grow in it."""
    end, seconds = past[-1].time, min(MAX_TREND_SECONDS, max(MIN_TREND_SECONDS, 2 * startup))
    points = [(s.time - end, running(s)) for s in past if s.time >= end - seconds and s.fresh]
    growth = max(0.0, _slope(points, SURE)) * startup
    if load is None or load.age > STALE_LOAD:
        return growth, 1.0
    # A single step up some minutes ago has a slope as well. Arrivals that still rise also rise in the latest part.
    newest = _arrivals(load, LATEST_TREND_SECONDS)
    rising = _slope(_arrivals(load, ARRIVALS_TREND_SECONDS), SURE_OF_ARRIVALS)
    rising = max(0.0, min(rising, _slope(newest, 0.0))) * startup
    present = _present(load)
    # A rise that follows a fall has no slope over the long time. A clear one counts alone, for no longer than it was looked at, from the
    # middle of the minute that the present rate is the mean of. A jump that is over rises no more.
    latest = min(_slope(newest, SURE_OF_LATEST), _slope(newest[len(newest) // 2 :], 0.0))
    latest *= min(startup, LATEST_TREND_SECONDS) + ARRIVALS_SECONDS / 2 + load.age
    if latest > CLEAR_RISE * present:
        rising = max(rising, latest)
    return growth, min(MAX_GROWTH, 1 + rising / present) if present > 0 else 1.0


def decline(load: ServiceLoad | None, startup: float) -> float:
    """The share of the present arrivals by which they surely become fewer each second; 0 where they do not.

    It is the slope of MAX_TREND_SECONDS less SURE_OF_ARRIVALS standard errors, while the latest part falls as well. Noise that lasts for a
    minute looks like a trend over three of them, and less over five. A trend tells nothing about a start-up time longer than its own.
    """
    if load is None or load.age > STALE_LOAD or startup > MAX_TREND_SECONDS:
        return 0.0
    slope, error = _line(_arrivals(load, MAX_TREND_SECONDS))
    surely, present = -slope - SURE_OF_ARRIVALS * error, _present(load)
    if surely <= 0 or present <= 0 or _slope(_arrivals(load, LATEST_TREND_SECONDS / 2), 0.0) >= 0:
        return 0.0
    return surely / present


def reach(load: ServiceLoad | None, startup: float) -> float:
    """Arrivals per second that there may be when a replica that is started now is ready; 0 where no start is longer than a trend tells of.

    A service that is short stays short for a whole start. So a start of 20 minutes is prepared for MAX_REACH times the present arrivals
    (the mean of five minutes, which noise moves little), and a shorter one for less. Where arrivals fall by a trend, they do so first: what the
    upper end of the trend leaves of them may rise. Once an hour is known, they are not expected above its highest five minutes, or above the
    upper end of the trend of one start, whichever is more: what came within three starts may come again.
    """
    if load is None or load.age > STALE_LOAD or startup <= MAX_TREND_SECONDS:
        return 0.0
    known = _known(load)
    *past, present = (0.0, *_means(known, MAX_TREND_SECONDS, load.step))
    share = min(1.0, (startup - MAX_TREND_SECONDS) / (LONG_START_SECONDS - MAX_TREND_SECONDS))
    left = present + min(0.0, _upper(known, ARRIVALS_TREND_SECONDS, load.step)) * startup
    may = max(present, left * (1 + share * (MAX_REACH - 1)))
    if len(known) * load.step < KNOWN_SECONDS:
        return may
    return min(may, max(*past, present + max(0.0, _upper(known, startup, load.step)) * startup))


def usual(load: ServiceLoad | None) -> float:
    """Arrivals per second of a usual minute: three quarters of the last hour's minutes have as many or more. 0 where nothing is known.

    Bursts of less than three quarters of an hour do not move it, so headroom above it is not held above a burst, too.
    """
    if load is None or load.age > STALE_LOAD:
        return 0.0
    minutes = sorted(_means(_known(load), ARRIVALS_SECONDS, load.step))
    return minutes[len(minutes) // 4] if minutes else 0.0


def _known(load: ServiceLoad) -> Sequence[float]:
    """The arrivals since the first request that is known."""
    begun = next((place for place, one in enumerate(load.arrivals) if one), len(load.arrivals))
    return load.arrivals[begun:]


def _upper(known: Sequence[float], seconds: float, step: float) -> float:
    """The slope per second of the last `seconds`, at the upper end of what it may be."""
    minutes = _means(known[-int(seconds / step) :], ARRIVALS_SECONDS, step)
    slope, error = _line([(ARRIVALS_SECONDS * place, one) for place, one in enumerate(minutes)])
    return slope + SURE_OF_REACH * error


def _means(known: Sequence[float], seconds: float, step: float) -> list[float]:
    """Means over so many seconds each, oldest first; the last one ends now. Of all together where they are fewer."""
    if not known:
        return []
    count = min(len(known), round(seconds / step))
    return [sum(known[end - count : end]) / count for end in range(len(known), count - 1, -count)][::-1]


def _arrivals(load: ServiceLoad, seconds: float) -> Points:
    steps = load.arrivals[-int(seconds / load.step) :]
    return [(index * load.step, rate) for index, rate in enumerate(steps)]


def _present(load: ServiceLoad) -> float:
    """Arrivals per second of the last minute."""
    steps = load.arrivals[-int(ARRIVALS_SECONDS / load.step) :]
    return sum(steps) / max(1, len(steps))


def _slope(points: Points, sure: float) -> float:
    """The slope per second by least squares; 0 when it is not `sure` standard errors away from 0."""
    slope, error = _line(points)
    return slope if abs(slope) > sure * error else 0.0


def _line(points: Points) -> tuple[float, float]:
    """The slope per second by least squares, and its standard error; no slope for fewer than MIN_POINTS."""
    count = len(points)
    if count < MIN_POINTS:
        return 0.0, 0.0
    middle, mean = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - middle) ** 2 for x, _ in points)
    if spread <= 0:
        return 0.0, 0.0
    slope = sum((x - middle) * (y - mean) for x, y in points) / spread
    residual = sum((y - mean - slope * (x - middle)) ** 2 for x, y in points)
    return slope, math.sqrt(residual / (count - 2) / spread)
