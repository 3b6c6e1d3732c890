"""How many replicas a revision should have: what `demand` needs, made steady.

Up at once when the load needs it now (a panic) or will need it when a replica started now is ready; never while pods
cannot be had. Down to what carried the highest load of the window with a margin, never on a missing or stale reading,
never in a panic, never below what the replicas that serve now can carry. To zero after `idleToZero` without a request,
from zero at the first held one. The window before a decrease is what a replica costs to get back: its start-up time,
doubled for each small decrease that had to be taken back lately.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pagefleet_operator.domain.scaling import policies
from pagefleet_operator.domain.scaling.demand import Demand, demand
from pagefleet_operator.domain.scaling.inflow import STALE_LOAD
from pagefleet_operator.domain.scaling.load import Totals, totals
from pagefleet_operator.domain.scaling.policies import bounded
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.status.observation import RevisionReading
from pagefleet_operator.domain.status.sample import ServiceLoad
from pagefleet_operator.domain.status.status import ScalingRecord

SHORTEST_WINDOW, LONGEST_WINDOW = 30.0, 300.0
LEARNED_SHARE = 0.3  # of a new start-up time in the learned one
CLEARLY = 1.25  # the noise of +-10 % has 1.1 / 0.9 between its ends: fewer replicas than that margin asks for time
CALM_WINDOW, CALM_LONGEST = 900.0, 1700.0
CLOSE = 0.02  # of a replica too little is not worth one
NEARLY_LATE = 0.8  # of target.ttft: nothing shrinks above it
IDLE_NOTED = 60.0


@dataclass(frozen=True)
class Wish:
    """`replicas` within the bounds; `message` says on what numbers, when it differs from what is there.

    `limit` is why there are not as many as the load needs ("AtMaximum", "Refused") or why nothing may shrink
    ("SignalsMissing"), with `limit_message`; "" when nothing stands in the way. `needed` is the load's need in
    replicas, None when it is not known.
    """

    replicas: int
    record: ScalingRecord
    message: str = ""
    limit: str = ""
    limit_message: str = ""
    needed: float | None = None


def wish(
    found: RevisionReading,
    load: ServiceLoad | None,
    desired: int | None,
    before: ScalingRecord,
    scaling: Scaling,
    now: float,
) -> Wish:
    """`size` of a revision as the cluster has it."""
    return size(totals(found, now), load, desired, before, scaling, now)


def size(
    seen: Totals,
    load: ServiceLoad | None,
    desired: int | None,
    before: ScalingRecord,
    scaling: Scaling,
    now: float,
) -> Wish:
    """`desired` is what was last decided (None before the first time): not what somebody else made of it since.

    `before` is the record of the last decision about this revision; `load` is None when no gateway answered: then
    nothing shrinks, because what waits in a gateway is not seen.
    """
    answer = _sized(seen, load, desired, before, scaling, now)
    if seen.refused and not answer.limit:
        return replace(answer, limit="Refused", limit_message=f"replicas cannot be had: {seen.refused}")
    return answer


def _sized(
    seen: Totals,
    load: ServiceLoad | None,
    desired: int | None,
    before: ScalingRecord,
    scaling: Scaling,
    now: float,
) -> Wish:
    record = _learned(seen, before)
    if desired == 0 and scaling.idle_to_zero is not None:
        return _asleep(seen, load, record, scaling, now)
    current = bounded(desired if desired is not None else max(1, scaling.min), scaling)
    if not seen.latest.fresh:
        blind = "no replica tells its load" if seen.latest.serving else ""
        return Wish(current, replace(record, idle_since=None), limit=_missing(blind), limit_message=blind)
    record = _idle(seen, load, record, scaling, now)
    if _sleeps(record, scaling, now):
        slept = now - (record.idle_since or now)
        return _changed(current, 0, f"no request for {slept:.0f} s", record, now, None)
    startup = record.startup if record.startup is not None else scaling.startup
    window = _window(startup, scaling)
    calm = window if scaling.stabilization is not None else max(window, CALM_WINDOW)
    calm = min(CALM_LONGEST, calm * 2 ** policies.turns(record.steps, current, now))
    found = demand(seen, load, scaling, startup, window, calm)
    panicking, record = _panic(found, seen, record, scaling, now)
    wanted = math.ceil(max(found.steady, found.ahead, found.now if panicking else 0.0) - CLOSE)
    if wanted > current:
        return _grow(wanted, panicking, current, found, seen, record, scaling, now)
    return _shrink(current, found, seen, load, record, scaling, now, window)


def _learned(seen: Totals, before: ScalingRecord) -> ScalingRecord:
    """The start-up time with the pods that became ready since: an exponentially weighted mean."""
    record = before
    for when, seconds in sorted(seen.startups):
        if (before.learned is None or when > before.learned) and seconds >= 0:
            old = record.startup if record.startup is not None else seconds
            record = replace(record, startup=round(old + LEARNED_SHARE * (seconds - old), 1), learned=when)
    return record


def _window(startup: float, scaling: Scaling) -> float:
    if scaling.stabilization is not None:
        return scaling.stabilization
    return min(LONGEST_WINDOW, max(SHORTEST_WINDOW, startup))


def _panic(
    found: Demand, seen: Totals, record: ScalingRecord, scaling: Scaling, now: float
) -> tuple[bool, ScalingRecord]:
    """Whether the load needs at least `panic.threshold` times what serves; noted a few times in a window."""
    panicking = math.ceil(found.now - CLOSE) >= scaling.panic_threshold * seen.latest.serving
    since = record.panic_since if record.panic_since is not None and record.panic_since <= now else None
    if panicking and (since is None or now - since > scaling.panic_window / 4):
        return True, replace(record, panic_since=now)
    if not panicking and since is not None and now - since >= scaling.panic_window:
        since = None
    return panicking, replace(record, panic_since=since)


def _grow(
    wanted: int,
    panicking: bool,
    current: int,
    found: Demand,
    seen: Totals,
    record: ScalingRecord,
    scaling: Scaling,
    now: float,
) -> Wish:
    stay = Wish(current, record, needed=max(found.steady, found.ahead))
    if current >= scaling.max:
        most = scaling.capped or f"spec.scaling.max is {scaling.max}"
        kind = "CostCeiling" if scaling.capped else "AtMaximum"
        return replace(stay, limit=kind, limit_message=f"the load needs more than {current} replicas; {most}")
    if seen.refused or seen.stuck:
        return replace(stay, limit="Refused", limit_message=f"the load needs more replicas; {seen.refused}")
    if not panicking and scaling.up_stabilization:
        since = record.above_since if record.above_since is not None and record.above_since <= now else now
        if now - since < scaling.up_stabilization:
            return replace(stay, record=replace(record, above_since=since))
    limited = policies.limited(bounded(wanted, scaling), current, record.steps, scaling, now)
    if limited == current:
        return stay
    return _changed(current, limited, found.why, replace(record, above_since=None), now, stay.needed)


def _shrink(
    current: int,
    found: Demand,
    seen: Totals,
    load: ServiceLoad | None,
    record: ScalingRecord,
    scaling: Scaling,
    now: float,
    window: float,
) -> Wish:
    record = replace(record, above_since=None)
    stay = Wish(
        current, record, limit=_missing(found.blind), limit_message=found.blind, needed=max(found.steady, found.ahead)
    )
    up = policies.last_up(record.steps, now)
    if found.blind or found.peak is None or record.panic_since is not None or (up is not None and now - up < window):
        return stay
    if scaling.target.ttft is not None and (found.first_token or 0.0) > NEARLY_LATE * scaling.target.ttft:
        return stay
    present = max(found.now, found.steady, found.ahead)
    least = math.ceil(max(found.peak, present) * CLEARLY - 1e-9)
    if least * CLEARLY > current and scaling.stabilization is None and policies.noisy(record.steps, current, now):
        least = current  # noise has raised the fleet lately, and would take so small a decrease back
    if found.calm_peak is not None:
        least = min(least, math.ceil(max(found.calm_peak, present) * (1 + scaling.tolerance) - 1e-9))
    if found.replica.tokens is None:
        least = max(least, current - 1)
    least = bounded(max(1, least), scaling)
    if least >= current or seen.latest.serving < least:
        return stay
    limited = policies.limited(least, current, record.steps, scaling, now)
    why = f"{found.why}; the highest need of {window:.0f} s was {found.peak:.2f} replicas"
    return stay if limited == current else _changed(current, limited, why, record, now, found.steady)


def _changed(current: int, replicas: int, why: str, record: ScalingRecord, now: float, needed: float | None) -> Wish:
    record = replace(record, steps=policies.remembered(record.steps, replicas - current, now))
    return Wish(replicas, record, f"{current} -> {replicas} replicas: {why}", needed=needed)


def _asleep(seen: Totals, load: ServiceLoad | None, record: ScalingRecord, scaling: Scaling, now: float) -> Wish:
    """Zero replicas: one for the first held request, more when many are held already."""
    record = replace(record, idle_since=None, panic_since=None)
    if scaling.wake or (load is not None and load.held):
        held = load.held if load is not None else 0
        wanted = math.ceil(held / seen.slots) if seen.slots else 1
        woken = bounded(max(1, wanted), scaling)
        return _changed(0, woken, f"{held} requests are held" if held else "a schedule asks for it", record, now, None)
    return Wish(0, record)


def _idle(seen: Totals, load: ServiceLoad | None, record: ScalingRecord, scaling: Scaling, now: float) -> ScalingRecord:
    """Since when nothing arrived, ran or waited; stored once it has lasted a minute, so that traffic writes nothing."""
    latest = seen.latest
    busy = latest.load.running or latest.load.waiting or not latest.complete
    if scaling.idle_to_zero is None or load is None or load.age > STALE_LOAD or load.held or busy:
        return replace(record, idle_since=None)
    steps = 0
    while steps < len(load.arrivals) and load.arrivals[-1 - steps] <= 0:
        steps += 1
    seen_arrival, last = steps < len(load.arrivals), now - load.age - steps * load.step
    last = max(last, _awake_since(seen, record, now) if not seen_arrival else last)
    before = record.idle_since if record.idle_since is not None and record.idle_since <= now else None
    if before is not None and (not seen_arrival or last <= before + load.step):
        return replace(record, idle_since=before)
    noted = min(IDLE_NOTED, scaling.idle_to_zero) if seen_arrival else 0.0
    return replace(record, idle_since=last if now - last >= noted else None)


def _awake_since(seen: Totals, record: ScalingRecord, now: float) -> float:
    """Windows reach back to before the service was made or woken, and what woke it is not in a closed one yet."""
    serving = next((sample.time for sample in (*seen.history, seen.latest) if sample.serving), now)
    return max(serving, policies.last_up(record.steps, now) or serving)


def _sleeps(record: ScalingRecord, scaling: Scaling, now: float) -> bool:
    return (
        scaling.idle_to_zero is not None
        and not scaling.wake
        and record.idle_since is not None
        and now - record.idle_since >= scaling.idle_to_zero
    )


def _missing(blind: str) -> str:
    return "SignalsMissing" if blind else ""
