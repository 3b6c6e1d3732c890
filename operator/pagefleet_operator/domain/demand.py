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
from itertools import accumulate, pairwise

from pagefleet_operator.domain import curve
from pagefleet_operator.domain.curve import Curve, Mean
from pagefleet_operator.domain.load import Totals
from pagefleet_operator.domain.sample import Sample, ServiceLoad
from pagefleet_operator.domain.spec_scaling import Scaling

SLOTS_USED = 0.95  # of a replica's slots; pages have their own share, target.freeKVPages
ROOM = 1.0
RECENT_SECONDS = 30.0
SHORTEST_TREND, LONGEST_TREND, ARRIVALS_TREND = 60.0, 300.0, 600.0
SURE, SURE_OF_ARRIVALS = 5.0, 3.0  # standard errors; neighbouring samples of a queue see the same requests
MOST_GROWTH = 2.0  # of what is there now, that a trend may add up to
LATEST_TREND = 180.0
NEWEST = ((2, 1.5), (1, 2.5))  # steps, and the standard deviations of their count that are taken off
BEFORE, SURE_RISE = 6, 3.0  # steps that a rise is measured against, and the standard deviations of their count
FILLING_SECONDS, LONGEST_COVER = 300.0, 1700.0  # a history is 1800 s long
STALE_LOAD = 30.0
FALLEN_SECONDS, ARRIVALS_SECONDS = 30.0, 60.0  # of which arrivals are the present ones, after a clear fall and else
SURE_OF_CURVE = 2.0  # standard errors
SETTLING_SECONDS = 120.0  # until a new replica's crowd has ended and is out of the last minute of first tokens
FULL = 0.8  # of the target concurrency: what waits then waits for a slot
DRAIN_SECONDS = 30.0  # in which what has queued up should be taken up once replicas are there
LEAST_REQUESTS = 10.0
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
    one; None when the window is not covered by readings. `blind` says which reading is missing ("" when none is)."""

    now: float
    steady: float
    ahead: float
    peak: float | None
    calm_peak: float | None
    replica: Replica
    why: str
    blind: str
    first_token: float | None = None  # seconds, where it tells of those that serve now


@dataclass(frozen=True)
class Flow:
    """Tokens per second that arrive, and tokens of a request (None when it is not known)."""

    tokens: float
    each: float | None


def demand(
    seen: Totals, load: ServiceLoad | None, scaling: Scaling, startup: float, window: float, calm: float
) -> Demand:
    """`startup`: seconds until a replica started now is ready; `window` and `calm`: of `peak` and `calm_peak`.

    `seen.latest.fresh` must not be zero.
    """
    latest = seen.latest
    past = [*(s for s in seen.history if s.time < latest.time), latest]
    recent = [s for s in past if s.time > latest.time - RECENT_SECONDS and s.fresh]
    half_minutes = [mean for mean in curve.means(past) if mean.replicas]
    replica = _replica(recent, seen.slots, curve.fit(half_minutes), scaling)
    held = load.held if load else 0
    fallen = _fallen(load, window, scaling)
    flow = _flow(load, recent, past, FALLEN_SECONDS if fallen else ARRIVALS_SECONDS)
    carried = _load(_running(latest), flow.tokens, replica)
    average = sum(_running(s) for s in recent) / len(recent)
    queued = sum(_movable(s, replica) for s in recent) / len(recent) + held
    growth, factor = _trends(past, load, startup)
    backlog = _backlog(queued, replica, flow)
    asked = _load(average, flow.tokens, replica)
    backlog += _piling(asked, latest.serving, startup)
    steady = max(asked + backlog, _preempting(recent, latest), _late(latest, past, load, scaling))
    now = carried + _backlog(_movable(latest, replica) + held, replica, flow)
    return Demand(
        now=max(now, _queued(latest, held, replica, scaling)),
        steady=steady,
        ahead=_load(min(average + growth, average * MOST_GROWTH), flow.tokens * factor, replica) + backlog,
        peak=_load(average, flow.tokens, replace(replica, tokens=replica.least)) + backlog
        if fallen and replica.tokens is not None and all(s.complete for s in recent)
        else _peak(half_minutes, latest, replica, window, flow, load, scaling),
        calm_peak=_peak(
            half_minutes,
            latest,
            replica,
            calm,
            replace(flow, tokens=max(flow.tokens, _highest(load, flow, calm))),
            None,
            scaling,
        ),
        replica=replica,
        why=_why(latest, held, scaling, replica, load),
        blind=_blind(latest, load),
        first_token=_first_token(latest, past, load),
    )


def _load(running: float, tokens: float, replica: Replica) -> float:
    """With room for chance: what C sequences ask for varies by about 1 / sqrt(C), less the larger the fleet is (the
    square-root staffing rule: Halfin and Whitt, Operations Research 29:3, 1981)."""
    carried = max(running / replica.sequences, tokens / replica.tokens if replica.tokens else 0.0)
    return carried * (1 + ROOM / math.sqrt(max(1.0, running)))


def _running(entry: Sample) -> float:
    """Of all that serve: pods that were not read are taken to be like the others."""
    return entry.running * entry.serving / entry.fresh


def _movable(entry: Sample, replica: Replica) -> float:
    """What waits in engines that are full together, or each with a queue of its own. Beside a free slot elsewhere more
    replicas would not help it."""
    full = entry.running >= FULL * replica.sequences * entry.fresh or math.isinf(replica.sequences)
    return entry.waiting * entry.serving / entry.fresh if full or entry.unqueued == 0 else 0.0


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
    running, pages = sum(s.running for s in recent), sum(s.pages for s in recent)
    total = sum(s.total_pages for s in recent) / max(1, sum(s.fresh for s in recent))
    sequences = slots * SLOTS_USED if slots else math.inf
    if running and pages and total:
        sequences = min(sequences, total * (1 - scaling.free_pages) * running / pages)
    sequences = max(sequences, 0.1)
    if found is None or math.isinf(sequences):
        return Replica(sequences, None)
    return Replica(sequences, found.throughput(sequences), found.throughput(sequences, SURE_OF_CURVE))


def _queued(latest: Sample, held: int, replica: Replica, scaling: Scaling) -> float:
    """A queue above its target asks for more than serve now, at most for twice as many."""
    waiting = _movable(latest, replica) + held
    if waiting <= scaling.queue_depth * max(1, latest.serving):
        return 0.0
    return min(waiting / scaling.queue_depth, 2.0 * max(1, latest.serving))


def _preempting(recent: Sequence[Sample], latest: Sample) -> float:
    """Preemption in half of the recent readings: pages are short whatever their average is."""
    short = sum(1 for s in recent if s.preemptions > 0)
    return latest.serving + 1.0 if len(recent) > 1 and 2 * short >= len(recent) else 0.0


def _first_token(latest: Sample, past: Sequence[Sample], load: ServiceLoad | None) -> float | None:
    if any(s.serving < latest.serving for s in past if s.time > latest.time - SETTLING_SECONDS):
        return None
    if load is None or load.age > STALE_LOAD or not latest.running + latest.waiting:
        return None
    return load.ttft


def _late(latest: Sample, past: Sequence[Sample], load: ServiceLoad | None, scaling: Scaling) -> float:
    ttft = _first_token(latest, past, load)
    if scaling.ttft is None or ttft is None or ttft <= scaling.ttft:
        return 0.0
    return max(latest.serving + 1.0, latest.serving * min(1.5, ttft / scaling.ttft))


def _flow(load: ServiceLoad | None, recent: Sequence[Sample], past: Sequence[Sample], seconds: float) -> Flow:
    """What the replicas generate at least, but for what makes up for a shortage; more when the arrivals of the last
    `seconds`, or of the newest two steps or one (NEWEST), will ask for more at the tokens that a request took so far."""
    generated = sum(s.tokens * s.serving / s.fresh for s in recent) / len(recent)
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
    return sum(b.tokens * b.serving / b.fresh * (b.time - a.time) for a, b in pairwise(told)) / ended


def _inside(entry: Sample) -> float:
    return (entry.running + entry.waiting) * entry.serving / entry.fresh


def _ending(recent: Sequence[Sample]) -> float:
    """Requests per second by which those in the replicas get fewer, because more end than arrive: 0 when they do not.
    A replica that is removed takes its share along: that is no end."""
    pairs = [(a, b) for a, b in pairwise(recent) if b.fresh]
    fewer = sum((a.running + a.waiting) * min(1.0, b.fresh / a.fresh) - b.running - b.waiting for a, b in pairs)
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
    if newest < SHORT * usual + SURE_RISE * math.sqrt(usual / load.step):
        return 0.0
    return newest + max(0.0, newest - last) * (load.age / load.step + 0.5)


def _fallen(load: ServiceLoad | None, window: float, scaling: Scaling) -> bool:
    """Whether arrivals of the last half minute are clearly fewer than those of the window before it."""
    if load is None or load.age > STALE_LOAD or scaling.stabilization is not None:
        return False
    count = round(FALLEN_SECONDS / load.step)
    before = load.arrivals[-count - max(1, round(window / load.step)) : -count]
    usual = FALLEN_SECONDS * sum(before) / max(1, len(before))
    newest = load.step * sum(load.arrivals[-count:])
    return newest < usual / SHORT - SURE_RISE * math.sqrt(usual)


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
    counted = FALLEN_SECONDS if _fallen(load, window, scaling) else window
    inside = [mean for mean in half_minutes if mean.start > latest.time - counted - curve.MEAN_SECONDS]
    if not all(mean.whole for mean in inside):
        return None
    margin = 1.0 if replica.tokens is not None else 2.0
    arrived = _highest(load, flow, counted + 2 * curve.MEAN_SECONDS) or math.inf
    return margin * max(_carried(mean, arrived, flow, replace(replica, tokens=replica.least)) for mean in inside)


def _carried(mean: Mean, arrived: float, flow: Flow, replica: Replica) -> float:
    share = min(1.0, arrived / mean.tokens) if mean.tokens > 0 else 1.0
    tokens = max(mean.tokens * share, flow.tokens)
    return _load(mean.running * share, tokens, replica) + _backlog(mean.waiting, replica, flow)


def _highest(load: ServiceLoad | None, flow: Flow, seconds: float) -> float:
    """Tokens per second that the busiest minute of arrivals within `seconds` asked for: what an increase was decided on,
    or would have been with fewer replicas. Never less than `flow` asks for; 0 when arrivals are not known."""
    if load is None or flow.each is None:
        return 0.0
    count = round(ARRIVALS_SECONDS / load.step)
    sums = [0.0, *accumulate(load.arrivals[-max(count, round(seconds / load.step)) :])]
    highest = max((after - before for before, after in zip(sums, sums[count:], strict=False)), default=0.0)
    return max(flow.tokens, flow.each * highest / count)


def _blind(latest: Sample, load: ServiceLoad | None) -> str:
    if not latest.complete:
        return f"{latest.serving - latest.fresh} of {latest.serving} replicas do not tell their load"
    if load is None:
        return "no gateway answers"
    return f"the gateways' numbers are more than {STALE_LOAD:.0f} s old" if load.age > STALE_LOAD else ""


def _why(latest: Sample, held: int, scaling: Scaling, replica: Replica, load: ServiceLoad | None) -> str:
    parts = [f"{latest.running} requests run and {latest.waiting} wait on {latest.serving} replicas"]
    parts += [f"{held} are held"] if held else []
    if latest.total_pages:
        free = 1 - latest.pages / latest.total_pages
        parts.append(f"{free:.0%} of KV pages are free (target {scaling.free_pages:.0%})")
    else:
        parts.append("the engine does not tell its KV pages")
    if math.isfinite(replica.sequences):
        speed = f" at {replica.tokens:.0f} tokens/s" if replica.tokens else ""
        parts.append(f"a replica carries {replica.sequences:.1f}{speed}")
    if scaling.ttft is not None and load is not None and load.ttft is not None:
        parts.append(f"first token after {load.ttft:.2f} s (target {scaling.ttft:g} s)")
    return ", ".join(parts)
