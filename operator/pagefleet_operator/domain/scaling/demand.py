"""How many replicas the load needs: now, by the means of half a minute, and when a replica started now would be ready.

A replica carries so many sequences (its slots, or its KV pages at the present size of a sequence), and so many tokens
per second at that concurrency (`curve`). Demand is the larger of concurrency / sequences and throughput / tokens; the
larger signal wins. Looks ahead by the trend of concurrency and of arrivals, where the trend stands out of its noise.
Decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagefleet_operator.domain.scaling import throughput
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
from pagefleet_operator.domain.scaling.throughput import Curve, Mean
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad

SLOTS_USED = 0.95  # of a replica's slots; pages have their own share, target.freeKVPages
ROOM = 1.0
RECENT_SECONDS = 30.0
SHORTEST_TREND, LONGEST_TREND, ARRIVALS_TREND = 60.0, 300.0, 600.0
SURE, SURE_OF_ARRIVALS = 5.0, 3.0  # standard errors; neighbouring samples of a queue see the same requests
MOST_GROWTH = 2.0  # of what is there now, that a trend may add up to
LATEST_TREND = 180.0
FILLING_SECONDS, LONGEST_COVER = 300.0, 1700.0  # a history is 1800 s long
SURE_OF_CURVE = 2.0  # standard errors
SETTLING_SECONDS = 120.0  # until a new replica's crowd has ended and is out of the last minute of first tokens
FULL = 0.8  # of the target concurrency: what waits then waits for a slot
DRAIN_SECONDS = 30.0  # in which what has queued up should be taken up once replicas are there
SHORT = 1.25  # times what serves
CATCH_SECONDS = 25.0  # in which what has piled up while replicas started should be taken up
MOST_PILED = 2.0  # of what is needed


@dataclass(frozen=True)
class Replica:
    """What one replica carries at its target. `tokens` (per second) is None while its curve is not known; `least` are
    those that it surely generates, however little the readings told of such a concurrency."""

    sequences: float
    tokens: float | None
    least: float | None = None


@dataclass(frozen=True)
class Demand:
    """In replicas, not rounded. `peak` is the highest of the window before a scale-down, `calm_peak` that of a longer
    one; None when the window is not covered by readings. `blind` says which reading is missing ("" when none is).
    `first_token` is None where it does not tell of the replicas that serve now; in seconds."""

    now: float
    steady: float
    ahead: float
    peak: float | None
    calm_peak: float | None
    replica: Replica
    why: str
    blind: str
    first_token: float | None


def demand(
    seen: Totals, load: ServiceLoad | None, scaling: Scaling, startup: float, window: float, calm: float
) -> Demand:
    """`startup`: seconds until a replica started now is ready; `window` and `calm`: of `peak` and `calm_peak`.

    `seen.latest.fresh` must not be zero.
    """
    latest = seen.latest
    past = [*(s for s in seen.history if s.time < latest.time), latest]
    recent = [s for s in past if s.time > latest.time - RECENT_SECONDS and s.fresh]
    half_minutes = [mean for mean in throughput.means(past) if mean.replicas]
    replica = _replica(recent, seen.slots, throughput.fit(half_minutes[:-1]), scaling)
    held = load.held if load else 0
    over = fallen(load, window, scaling)
    arriving = flow(load, recent, past, FALLEN_SECONDS if over else ARRIVALS_SECONDS)
    carried = _load(_running(latest), arriving.tokens, replica)
    average = sum(_running(s) for s in recent) / len(recent)
    queued = sum(_movable(s, replica) for s in recent) / len(recent) + held
    growth, factor = _trends(past, load, startup)
    backlog = _backlog(queued, replica, arriving)
    asked = _load(average, arriving.tokens, replica)
    backlog += _piling(asked, latest.serving, startup)
    first = _first_token(latest, past, load)
    now = carried + _backlog(_movable(latest, replica) + held, replica, arriving)
    peak = _peak(half_minutes, latest, replica, window, arriving, load, scaling)
    if peak is not None and over and replica.least is not None:
        # The window is over, and its half-minutes are coarse: what runs and arrives now is all there is to carry.
        peak = min(peak, _load(average, arriving.tokens, replace(replica, tokens=replica.least)) + backlog)
    long = replace(arriving, tokens=max(arriving.tokens, highest(load, arriving, calm)))
    return Demand(
        now=max(now, _queued(latest, held, replica, scaling)),
        steady=max(asked + backlog, _preempting(recent, latest), _late(latest, first, scaling)),
        ahead=_load(min(average + growth, average * MOST_GROWTH), arriving.tokens * factor, replica) + backlog,
        peak=peak,
        calm_peak=_peak(half_minutes, latest, replica, calm, long, None, scaling),
        replica=replica,
        why=_why(latest, held, scaling, replica, load),
        blind=_blind(latest, load),
        first_token=first,
    )


def _load(running: float, tokens: float, replica: Replica) -> float:
    """With room for chance: what C sequences ask for varies by about 1 / sqrt(C), less the larger the fleet is (the
    square-root staffing rule: Halfin and Whitt, Operations Research 29:3, 1981)."""
    carried = max(running / replica.sequences, tokens / replica.tokens if replica.tokens else 0.0)
    return carried * (1 + ROOM / math.sqrt(max(1.0, running)))


def _running(entry: Sample) -> float:
    """Of all that serve: pods that were not read are taken to be like the others."""
    return entry.load.running * entry.serving / entry.fresh


def _movable(entry: Sample, replica: Replica) -> float:
    """What waits in engines that are full together, or each with a queue of its own. Beside a free slot elsewhere more
    replicas would not help it."""
    full = entry.load.running >= FULL * replica.sequences * entry.fresh or math.isinf(replica.sequences)
    return entry.load.waiting * entry.serving / entry.fresh if full or entry.unqueued == 0 else 0.0


def _backlog(queued: float, replica: Replica, flow: Flow) -> float:
    """Replicas that take up `queued` within DRAIN_SECONDS: each begins with all its slots, and goes on by its speed."""
    if math.isinf(replica.sequences):
        return 0.0
    more = replica.tokens * DRAIN_SECONDS / flow.each if replica.tokens and flow.each else 0.0
    return queued / (replica.sequences + more)


def _piling(asked: float, serving: int, startup: float) -> float:
    """Replicas that take up within CATCH_SECONDS what those that serve leave undone until a replica started now is
    ready. Ordered with the others they are ready in time, and of many that start the first ones are so sooner. Less than
    SHORT is noise, which leaves nothing undone for long."""
    return min(MOST_PILED * asked, (asked - serving) * startup / CATCH_SECONDS) if asked > SHORT * serving else 0.0


def _replica(recent: Sequence[Sample], slots: int | None, found: Curve | None, scaling: Scaling) -> Replica:
    running, pages = sum(s.load.running for s in recent), sum(s.load.kv_pages_used for s in recent)
    total = sum(s.load.kv_pages_total or 0 for s in recent) / max(1, sum(s.fresh for s in recent))
    sequences = slots * SLOTS_USED if slots else math.inf
    if running and pages and total:
        sequences = min(sequences, total * (1 - scaling.target.free_kv_pages) * running / pages)
    sequences = max(sequences, 0.1)
    if found is None or math.isinf(sequences):
        return Replica(sequences, None)
    return Replica(sequences, found.throughput(sequences), found.throughput(sequences, SURE_OF_CURVE))


def _queued(latest: Sample, held: int, replica: Replica, scaling: Scaling) -> float:
    """A queue above its target asks for more than serve now, at most for twice as many."""
    waiting = _movable(latest, replica) + held
    if waiting <= scaling.target.queue_depth * max(1, latest.serving):
        return 0.0
    return min(waiting / scaling.target.queue_depth, 2.0 * max(1, latest.serving))


def _preempting(recent: Sequence[Sample], latest: Sample) -> float:
    """Preemption in half of the recent readings: pages are short whatever their average is."""
    short = sum(1 for s in recent if (s.load.preemptions or 0.0) > 0)
    return latest.serving + 1.0 if len(recent) > 1 and 2 * short >= len(recent) else 0.0


def _first_token(latest: Sample, past: Sequence[Sample], load: ServiceLoad | None) -> float | None:
    """Seconds to the first token, where they tell of the replicas that serve now.

    Not while a replica is new: it is the least loaded, so it gets nearly every request for a while, and is late by that;
    and what waited before it came is told of when its request ends, up to minutes later.
    """
    if any(s.serving < latest.serving for s in past if s.time > latest.time - SETTLING_SECONDS):
        return None
    if load is None or load.age > STALE_LOAD or not latest.load.running + latest.load.waiting:
        return None
    return load.ttft


def _late(latest: Sample, first: float | None, scaling: Scaling) -> float:
    """First tokens later than `target.ttft`: in proportion, at most half as many again."""
    if scaling.target.ttft is None or first is None or first <= scaling.target.ttft:
        return 0.0
    return max(latest.serving + 1.0, latest.serving * min(1.5, first / scaling.target.ttft))


def _trends(past: Sequence[Sample], load: ServiceLoad | None, startup: float) -> tuple[float, float]:
    """Sequences to come within a start-up time, and the factor by which arrivals grow within it."""
    end, over = past[-1].time, min(LONGEST_TREND, max(SHORTEST_TREND, 2 * startup))
    points = [(s.time - end, _running(s)) for s in past if s.time >= end - over and s.fresh]
    growth = max(0.0, _slope(points, SURE)) * startup
    if load is None or load.age > STALE_LOAD:
        return growth, 1.0
    steps = load.arrivals[-int(ARRIVALS_TREND / load.step) :]
    rates = [(index * load.step, rate) for index, rate in enumerate(steps)]
    # A step up some minutes ago has a slope, too: what still rises does so in the latest part as well.
    newest = rates[-int(LATEST_TREND / load.step) :]
    rising = max(0.0, min(_slope(rates, SURE_OF_ARRIVALS), _slope(newest, 0.0))) * startup
    present = sum(steps[-6:]) / max(1, len(steps[-6:]))
    return growth, min(MOST_GROWTH, 1 + rising / present) if present > 0 else 1.0


def _slope(points: Sequence[tuple[float, float]], sure: float) -> float:
    """Of least squares, per second; 0 when it is not `sure` standard errors from none."""
    count = len(points)
    if count < 5:
        return 0.0
    middle, mean = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - middle) ** 2 for x, _ in points)
    if spread <= 0:
        return 0.0
    slope = sum((x - middle) * (y - mean) for x, y in points) / spread
    rest = sum((y - mean - slope * (x - middle)) ** 2 for x, y in points)
    error = math.sqrt(rest / (count - 2) / spread)
    return slope if abs(slope) > sure * error else 0.0


def _peak(
    half_minutes: Sequence[Mean],
    latest: Sample,
    replica: Replica,
    window: float,
    flow: Flow,
    load: ServiceLoad | None,
    scaling: Scaling,
) -> float | None:
    """Without a curve half of the target concurrency counts: throughput may end before the slots do.

    Nothing before readings cover the window and a while before it: a fleet that has just begun to fill has no peak yet.
    With `load` a window that a clear fall has ended counts no more, nor does what was generated beyond what had arrived:
    that made up for a shortage which is over.
    """
    covered = max(window, min(window + FILLING_SECONDS, LONGEST_COVER))
    if not half_minutes or half_minutes[0].start > latest.time - covered:
        return None
    counted = FALLEN_SECONDS if fallen(load, window, scaling) else window
    inside = [mean for mean in half_minutes if mean.start > latest.time - counted - throughput.MEAN_SECONDS]
    if not all(mean.whole for mean in inside):
        return None
    margin = 1.0 if replica.tokens is not None else 2.0
    arrived = highest(load, flow, counted + 2 * throughput.MEAN_SECONDS) or math.inf
    return margin * max(_carried(mean, arrived, flow, replace(replica, tokens=replica.least)) for mean in inside)


def _carried(mean: Mean, arrived: float, flow: Flow, replica: Replica) -> float:
    share = min(1.0, arrived / mean.tokens) if mean.tokens > 0 else 1.0
    tokens = max(mean.tokens * share, flow.tokens)
    return _load(mean.running * share, tokens, replica) + _backlog(mean.waiting, replica, flow)


def _blind(latest: Sample, load: ServiceLoad | None) -> str:
    if not latest.complete:
        return f"{latest.serving - latest.fresh} of {latest.serving} replicas do not tell their load"
    if load is None:
        return "no gateway answers"
    return f"the gateways' numbers are more than {STALE_LOAD:.0f} s old" if load.age > STALE_LOAD else ""


def _why(latest: Sample, held: int, scaling: Scaling, replica: Replica, load: ServiceLoad | None) -> str:
    parts = [f"{latest.load.running} requests run and {latest.load.waiting} wait on {latest.serving} replicas"]
    parts += [f"{held} are held"] if held else []
    free = latest.load.kv_share_free
    if free is not None:
        parts.append(f"{free:.0%} of KV pages are free (target {scaling.target.free_kv_pages:.0%})")
    else:
        parts.append("the engine does not tell its KV pages")
    if math.isfinite(replica.sequences):
        speed = f" at {replica.tokens:.0f} tokens/s" if replica.tokens else ""
        parts.append(f"a replica carries {replica.sequences:.1f}{speed}")
    if scaling.target.ttft is not None and load is not None and load.ttft is not None:
        parts.append(f"first token after {load.ttft:.2f} s (target {scaling.target.ttft:g} s)")
    return ", ".join(parts)
