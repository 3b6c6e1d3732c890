"""The demand: the number of replicas that the load needs now, in the mean of half a minute, and one start-up time ahead.

A replica carries a number of sequences (limited by its slots and by its KV pages at the present size of a sequence) and
a number of tokens per second at that concurrency (`throughput.Curve`). The demand is the larger of concurrency over
sequences and throughput over tokens; signals such as late first tokens may raise it. The trends of concurrency and of
arrivals are extended where they stand out of their noise. Decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.scaling import signals, throughput
from pagefleet_operator.domain.scaling.inflow import (
    ARRIVALS_SECONDS,
    FALLEN_SECONDS,
    STALE_LOAD,
    Flow,
    fallen,
    flow,
    highest,
)
from pagefleet_operator.domain.scaling.load import Totals
from pagefleet_operator.domain.scaling.replica import Replica, carrying, movable, replica_of, running, taking_up
from pagefleet_operator.domain.scaling.signals import Situation
from pagefleet_operator.domain.scaling.throughput import Mean
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad

RECENT_SECONDS = 30.0
MIN_TREND_SECONDS, MAX_TREND_SECONDS, ARRIVALS_TREND_SECONDS = 60.0, 300.0, 600.0
SURE, SURE_OF_ARRIVALS = 5.0, 3.0  # standard errors; neighbouring samples of a queue contain the same requests
MIN_POINTS = 5  # of a trend
MAX_GROWTH = 2.0  # times the present value, that a trend may add up to
LATEST_TREND_SECONDS, SURE_OF_LATEST = 180.0, 5.0
CLEAR_RISE = 0.25  # of the present arrivals
FILLING_SECONDS, MAX_COVER_SECONDS = 300.0, 1700.0  # a history is 1800 s long
SETTLING_SECONDS = 120.0  # until the first crowd of a new replica has left the last minute of first tokens
SHORT = 1.25  # times the serving replicas: below it a shortage is noise
CATCH_UP_SECONDS = 25.0  # in which the requests that piled up during a start should be taken up
MAX_PILED = 2.0  # times the need


@dataclass(frozen=True)
class Demand:
    """In replicas, not rounded.

    `peak` is the highest need of the window before a scale-down, `calm_peak` that of a longer window. They are None
    while the readings do not cover the window. `missing` names the reading that is missing, "" when none is.
    `first_token` is in seconds; it is None while it does not describe the replicas that serve now. `falling` says that arrivals have a
    trend downwards, so that a lower need is no noise.
    """

    now: float
    steady: float
    ahead: float
    peak: float | None
    calm_peak: float | None
    replica: Replica
    why: str
    missing: str
    first_token: float | None
    falling: bool


def demand(
    totals: Totals, load: ServiceLoad | None, scaling: Scaling, startup: float, window: float, calm: float
) -> Demand:
    """`startup` is the time in seconds until a replica that is started now is ready.

    `window` and `calm` are the seconds of `peak` and `calm_peak`. `totals.latest.fresh` must not be zero.
    """
    latest = totals.latest
    past = [*(s for s in totals.history if s.time < latest.time), latest]
    recent = [s for s in past if s.time > latest.time - RECENT_SECONDS and s.fresh]
    half_minutes = [mean for mean in throughput.means(past) if mean.replicas]
    situation = Situation(latest, recent, totals.slots, load, scaling.target)
    sequences = signals.sequences(situation)
    curve = throughput.fit(half_minutes[:-1], sequences)
    situation = replace(situation, curve=curve)
    able = replica_of(sequences, curve)
    replica = replica_of(min(sequences, signals.sequences_by_curve(situation)), curve)
    first_token = _first_token(latest, past, load)
    situation = replace(situation, replica=replica, first_token=first_token)
    over = fallen(load, window, scaling)
    arriving = flow(load, recent, past, FALLEN_SECONDS if over else ARRIVALS_SECONDS)
    carried = carrying(running(latest), arriving.tokens, replica)
    average = sum(running(s) for s in recent) / len(recent)
    queued = sum(movable(s, replica) for s in recent) / len(recent) + situation.held
    growth, factor = _trends(past, load, startup)
    backlog = taking_up(queued, replica, arriving)
    asked = carrying(average, arriving.tokens, replica)
    # Above the load that keeps a token's time, up to what a replica is able to carry, requests take longer and none is left over.
    backlog += _piling_up(carrying(average, arriving.tokens, able), latest.serving, startup)
    now = carried + taking_up(situation.queued, replica, arriving)
    peaks = _Peaks(half_minutes, latest, replica, scaling)
    peak = peaks.highest(window, arriving, load)
    if peak is not None and over and replica.sure_tokens is not None:
        # Arrivals have clearly fallen, and half-minutes are coarse: only the present requests must be carried.
        peak = min(peak, carrying(average, arriving.tokens, replace(replica, tokens=replica.sure_tokens)) + backlog)
    long = replace(arriving, tokens=max(arriving.tokens, highest(load, arriving, calm)))
    return Demand(
        now=max(now, signals.replicas_now(situation)),
        steady=max(asked + backlog, signals.replicas(situation)),
        ahead=carrying(min(average + growth, average * MAX_GROWTH), arriving.tokens * factor, replica) + backlog,
        peak=peak,
        calm_peak=peaks.highest(calm, long, None),
        replica=replica,
        why=signals.words(situation),
        missing=_missing(totals, load),
        first_token=first_token,
        falling=_falling(load),
    )


def _piling_up(asked: float, serving: int, startup: float) -> float:
    """Replicas for the requests that pile up until a replica that is started now is ready.

    The serving replicas leave these requests over, and the ordered ones take them up within CATCH_UP_SECONDS. They are
    ordered together with the other replicas, so that they are ready in time. A need below SHORT times the serving
    replicas is noise, and noise leaves no request over for long.
    """
    return min(MAX_PILED * asked, (asked - serving) * startup / CATCH_UP_SECONDS) if asked > SHORT * serving else 0.0


def _first_token(latest: Sample, past: Sequence[Sample], load: ServiceLoad | None) -> float | None:
    """Seconds to the first token, while they describe the replicas that serve now.

    They do not while a replica is new. A new replica has the least load, so it gets nearly every request for a while,
    and its first tokens are late because of that. Requests that waited before it came are counted only when they end,
    up to minutes later.
    """
    if any(s.serving < latest.serving for s in past if s.time > latest.time - SETTLING_SECONDS):
        return None
    if load is None or load.age > STALE_LOAD or not latest.load.running + latest.load.waiting:
        return None
    return load.ttft


def _trends(past: Sequence[Sample], load: ServiceLoad | None, startup: float) -> tuple[float, float]:
    """The sequences that come in addition within one start-up time, and the factor by which arrivals grow in it."""
    end, seconds = past[-1].time, min(MAX_TREND_SECONDS, max(MIN_TREND_SECONDS, 2 * startup))
    points = [(s.time - end, running(s)) for s in past if s.time >= end - seconds and s.fresh]
    growth = max(0.0, _slope(points, SURE)) * startup
    if load is None or load.age > STALE_LOAD:
        return growth, 1.0
    steps = load.arrivals[-int(ARRIVALS_TREND_SECONDS / load.step) :]
    rates = [(index * load.step, rate) for index, rate in enumerate(steps)]
    # A single step up some minutes ago has a slope as well. Arrivals that still rise also rise in the latest part.
    newest = rates[-int(LATEST_TREND_SECONDS / load.step) :]
    rising = max(0.0, min(_slope(rates, SURE_OF_ARRIVALS), _slope(newest, 0.0))) * startup
    present = sum(steps[-6:]) / max(1, len(steps[-6:]))
    # A rise that follows a fall has no slope over the long time. A clear one counts alone, for no longer than it was looked at, from the
    # middle of the minute that the present rate is the mean of. A jump that is over rises no more.
    latest = min(_slope(newest, SURE_OF_LATEST), _slope(newest[len(newest) // 2 :], 0.0))
    latest *= min(startup, LATEST_TREND_SECONDS) + ARRIVALS_SECONDS / 2 + load.age
    if latest > CLEAR_RISE * present:
        rising = max(rising, latest)
    return growth, min(MAX_GROWTH, 1 + rising / present) if present > 0 else 1.0


def _falling(load: ServiceLoad | None) -> bool:
    """Whether arrivals fall by a trend of the latest minutes that stands out of its noise and still goes on."""
    if load is None or load.age > STALE_LOAD:
        return False
    steps = load.arrivals[-int(LATEST_TREND_SECONDS / load.step) :]
    newest = [(index * load.step, rate) for index, rate in enumerate(steps)]
    return _slope(newest, SURE_OF_LATEST) < 0 and _slope(newest[len(newest) // 2 :], 0.0) < 0


def _slope(points: Sequence[tuple[float, float]], sure: float) -> float:
    """The slope per second by least squares; 0 when it is not `sure` standard errors away from 0."""
    count = len(points)
    if count < MIN_POINTS:
        return 0.0
    middle, mean = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - middle) ** 2 for x, _ in points)
    if spread <= 0:
        return 0.0
    slope = sum((x - middle) * (y - mean) for x, y in points) / spread
    residual = sum((y - mean - slope * (x - middle)) ** 2 for x, y in points)
    error = math.sqrt(residual / (count - 2) / spread)
    return slope if abs(slope) > sure * error else 0.0


@dataclass(frozen=True)
class _Peaks:
    """The half-minutes of the past that the highest need of a window is taken from."""

    half_minutes: Sequence[Mean]
    latest: Sample
    replica: Replica
    scaling: Scaling

    def highest(self, window: float, flow: Flow, load: ServiceLoad | None) -> float | None:
        """The highest need of the last `window` seconds.

        While the readings show no curve, half of the target concurrency counts as the capacity, because throughput may end before the
        slots do. The result is None until the readings cover the window and some time before it: a fleet that has just
        begun to fill has no peak yet. With `load`, a window that a clear fall has ended does not count any more. Nor do
        tokens beyond those that arrivals asked for: they made up for a shortage that is over.
        """
        means, end = self.half_minutes, self.latest.time
        covered = max(window, min(window + FILLING_SECONDS, MAX_COVER_SECONDS))
        if not means or means[0].start > end - covered:
            return None
        counted = FALLEN_SECONDS if fallen(load, window, self.scaling) else window
        inside = [mean for mean in means if mean.start > end - counted - throughput.MEAN_SECONDS]
        if not all(mean.whole for mean in inside):
            return None
        margin = 1.0 if self.replica.sure_tokens is not None else 2.0
        arrived = highest(load, flow, counted + 2 * throughput.MEAN_SECONDS) or math.inf
        sure = replace(self.replica, tokens=self.replica.sure_tokens or self.replica.tokens)
        return margin * max(_need(mean, arrived, flow, sure) for mean in inside)


def _need(mean: Mean, arrived: float, flow: Flow, replica: Replica) -> float:
    """The need of one half-minute, without the share of its load that made up for a shortage."""
    share = min(1.0, arrived / mean.tokens) if mean.tokens > 0 else 1.0
    tokens = max(mean.tokens * share, flow.tokens)
    return carrying(mean.running * share, tokens, replica) + taking_up(mean.waiting, replica, flow)


def _missing(totals: Totals, load: ServiceLoad | None) -> str:
    """The reading without which no replica is removed, in words; "" when none is missing.

    The words hold no number that changes between two decisions: each change would be written to the status.
    """
    latest = totals.latest
    if not latest.complete:
        return unread(totals)
    if load is None:
        return "no gateway answers, so that requests which wait there are unknown; no replica is removed"
    if math.isinf(load.age):
        return "not every gateway answers, so that requests which wait there are unknown; no replica is removed"
    if load.age > STALE_LOAD:
        return f"the gateways' measurements are more than {STALE_LOAD:.0f} s old; no replica is removed"
    return ""


def unread(totals: Totals) -> str:
    """The replicas whose load could not be read, with the cause of the first of them."""
    latest = totals.latest
    silent = f"{latest.serving - latest.fresh} of {latest.serving} replicas report no load"
    cause = f" ({totals.unread})" if totals.unread else ""
    return f"{silent}{cause}; no replica is removed until every one reports"
