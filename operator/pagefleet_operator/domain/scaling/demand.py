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
from pagefleet_operator.domain.scaling import signals, throughput, trends
from pagefleet_operator.domain.scaling.first_tokens import NEARLY_LATE
from pagefleet_operator.domain.scaling.inflow import (
    ARRIVALS_SECONDS,
    FALLEN_SECONDS,
    STALE_LOAD,
    Flow,
    fallen,
    flow,
    highest,
    seconds_each,
)
from pagefleet_operator.domain.scaling.load import Totals
from pagefleet_operator.domain.scaling.replica import Replica, carrying, movable, replica_of, running, taking_up
from pagefleet_operator.domain.scaling.signals import Situation
from pagefleet_operator.domain.scaling.throughput import Curve, Mean
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad

RECENT_SECONDS = 30.0
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
    `late`: first tokens take nearly target.ttft or longer; None while a new replica hides whether they do. `decline` is the share by which
    arrivals surely become fewer each second: above 0 a lower need is no noise. It is 0 where a window was given. `spare` carries
    what replicas are kept for whatever arrives now (`_reserve`; `spare_why` in words), and `kept` does so almost certainly; both are 0
    where nothing is asked for.
    """

    now: float
    steady: float
    ahead: float
    peak: float | None
    calm_peak: float | None
    replica: Replica
    why: str
    missing: str
    late: bool | None
    decline: float
    spare: float
    kept: float
    spare_why: str


def demand(
    totals: Totals, load: ServiceLoad | None, scaling: Scaling, startup: float, window: float, calm: float
) -> Demand:
    """`startup` is the time in seconds until a replica that is started now is ready.

    `window` and `calm` are the seconds of `peak` and `calm_peak`. `totals.latest.fresh` must not be zero.
    """
    latest = totals.latest
    past = [*(s for s in totals.history if s.time < latest.time), latest]
    recent = [s for s in past if s.time > latest.time - RECENT_SECONDS and s.fresh]
    half_minutes = throughput.means(past)
    # What a replica carries is learned from readings. An estimate of the load says nothing about it.
    readings = past[:-1] if totals.guessed else past
    situation = Situation(latest, recent, _last_read(readings), totals.slots, load, scaling.target)
    sequences = signals.sequences(situation)
    curve = throughput.fit(half_minutes[:-1], sequences)
    situation = replace(situation, curve=curve)
    able = replica_of(sequences, curve)
    replica = replica_of(min(sequences, signals.sequences_by_curve(situation)), curve)
    first_token = first_token_of(latest, past, load)
    situation = replace(situation, replica=replica, first_token=first_token)
    over = fallen(load, window, scaling)
    arriving = flow(load, recent, readings, FALLEN_SECONDS if over else ARRIVALS_SECONDS)
    carried = carrying(running(latest), arriving.tokens, replica)
    average = sum(running(s) for s in recent) / len(recent)
    queued = sum(movable(s, replica) for s in recent) / len(recent) + situation.held
    growth, factor = trends.rises(past, load, startup)
    rate, why = _kept_for(load, startup, scaling.headroom)
    spare = kept = 0.0
    if load is not None and rate:
        reserve = _reserve(rate, load, readings, average, arriving.each, replica.sequences)
        early = throughput.early(half_minutes[:-1], sequences)
        spare, kept = _reserved(reserve, sequences, curve, early, scaling.target.tpot)
    backlog = taking_up(queued, replica, arriving)
    asked = carrying(average, arriving.tokens, replica)
    # Above the load that keeps a token's time, up to what a replica is able to carry, requests take longer and none is left over.
    backlog += _piling_up(carrying(average, arriving.tokens, able), latest.serving, startup, totals.ages)
    now = carried + taking_up(situation.queued, replica, arriving)
    decline = trends.decline(load, startup) if scaling.stabilization is None else 0.0
    peaks = _Peaks(half_minutes, latest, replica, scaling)
    peak = peaks.highest(window, arriving, load, decline)
    if peak is not None and over and replica.sure_tokens is not None:
        # Arrivals have clearly fallen, and half-minutes are coarse: only the present requests must be carried.
        peak = min(peak, carrying(average, arriving.tokens, replace(replica, tokens=replica.sure_tokens)) + backlog)
    long = replace(arriving, tokens=max(arriving.tokens, highest(load, arriving, calm)))
    return Demand(
        now=max(now, signals.replicas_now(situation)),
        steady=max(asked + backlog, signals.replicas(situation)),
        ahead=carrying(min(average + growth, average * trends.MAX_GROWTH), arriving.tokens * factor, replica) + backlog,
        peak=peak,
        calm_peak=peaks.highest(calm, long, None, 0.0),
        replica=replica,
        why=signals.words(situation),
        missing=_missing(totals, load),
        late=_late(latest, past, first_token, scaling.target.ttft),
        decline=decline,
        spare=spare,
        kept=kept,
        spare_why=why,
    )


def _last_read(readings: Sequence[Sample]) -> list[Sample]:
    """The last half minute in which engines reported their load."""
    read = [one for one in readings if one.fresh]
    return [one for one in read if one.time > read[-1].time - RECENT_SECONDS]


def _piling_up(asked: float, serving: int, startup: float, ages: Sequence[float]) -> float:
    """Replicas for the requests that pile up until a replica that is started now is ready.

    The serving replicas leave these requests over, and the ordered ones take them up within CATCH_UP_SECONDS. They are
    ordered together with the other replicas, so that they are ready in time. A need below SHORT times the serving
    replicas is noise, and noise leaves no request over for long. A replica that has been starting for some seconds (`ages`) is ready by
    so many seconds earlier than one that is started now, and carries its part meanwhile.
    """
    if asked <= SHORT * serving:
        return 0.0
    left = (asked - serving) * startup - sum(min(age, startup) for age in ages)
    return max(0.0, min(MAX_PILED * asked, left / CATCH_UP_SECONDS))


@dataclass(frozen=True)
class _Reserve:
    """The sequences and the tokens per second that replicas are kept for, whatever arrives now."""

    running: float
    tokens: float = 0.0

    def replicas(self, replica: Replica) -> float:
        return carrying(self.running, self.tokens, replica)


def _kept_for(load: ServiceLoad | None, startup: float, headroom: float) -> tuple[float, str]:
    """Arrivals per second that replicas are kept for, and why: a long start, or headroom above what is usual, whichever asks for more."""
    may, usual = trends.reach(load, startup), trends.usual(load) if headroom else 0.0
    if (asked := usual * (1 + headroom)) > may:
        return asked, f"headroom of {headroom:.0%} above the usual {usual:.3g} requests/s"
    return may, f"what may arrive within a start of {startup:.0f} s"


def _reserve(
    rate: float,
    load: ServiceLoad,
    readings: Sequence[Sample],
    average: float,
    each: float | None,
    sequences: float,
) -> _Reserve:
    """What `rate` arrivals per second take. `average` sequences run now, and a request takes `each` tokens.

    Where engines report no tokens, sequences are counted instead, of replicas that may run so many `sequences`. They take longer there than
    they do now: a full step is assumed to take as long as in `throughput`.
    """
    if each:
        return _Reserve(average, rate * each)
    used = min(1.0, sum(s.load.running for s in readings) / max(1, sum(s.fresh for s in readings)) / sequences)
    longer = throughput.FULL_STEP / (1 + (throughput.FULL_STEP - 1) * used)
    return _Reserve(max(average, rate * seconds_each(load, readings) * longer))


def _reserved(
    reserve: _Reserve, sequences: float, curve: Curve | None, early: Curve | None, target: float | None
) -> tuple[float, float]:
    """Replicas that carry the reserve, and replicas that do so almost certainly, at `target` seconds per token.

    They go by the curve alone: what tokens take now tells little about full replicas while there are many to spare, and nor does a curve that
    is fitted to them. So the second number goes by the assumed curve as well.
    """
    able, assumed = (
        replica_of(min(sequences, signals.sequences_of(one, target)), one) for one in (curve or early, early)
    )
    tokens = [one for one in (able.sure_tokens or able.tokens, assumed.tokens) if one]
    return reserve.replicas(able), reserve.replicas(replace(able, tokens=min(tokens, default=None)))


def first_token_of(latest: Sample, past: Sequence[Sample], load: ServiceLoad | None) -> float | None:
    """Seconds to the first token, while they describe the replicas that serve now.

    They do not while a replica is new. A new replica has the least load, so it gets nearly every request for a while,
    and its first tokens are late because of that. Requests that waited before it came are counted only when they end,
    up to minutes later.
    """
    if _settling(latest, past):
        return None
    if load is None or load.age > STALE_LOAD or not latest.load.running + latest.load.waiting:
        return None
    return load.ttft


def _settling(latest: Sample, past: Sequence[Sample]) -> bool:
    return any(s.serving < latest.serving for s in past if s.time > latest.time - SETTLING_SECONDS)


def _late(latest: Sample, past: Sequence[Sample], first: float | None, target: float | None) -> bool | None:
    if target is None:
        return False
    if first is None:
        return None if _settling(latest, past) else False
    return first > NEARLY_LATE * target


@dataclass(frozen=True)
class _Peaks:
    """The half-minutes of the past that the highest need of a window is taken from."""

    half_minutes: Sequence[Mean]
    latest: Sample
    replica: Replica
    scaling: Scaling

    def highest(self, window: float, flow: Flow, load: ServiceLoad | None, decline: float) -> float | None:
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
        # What a trend has taken off the arrivals since a half-minute, it has taken off the need of that half-minute as well.
        ages = [max(0.0, end - mean.start - throughput.MEAN_SECONDS / 2) for mean in inside]
        needs = [_need(mean, arrived, flow, sure) / (1 + decline * age) for mean, age in zip(inside, ages, strict=True)]
        return margin * max(needs)


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
