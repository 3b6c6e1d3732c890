"""The recommendation: the number of replicas that a revision should have. It makes the demand steady.

A revision grows at once when the load needs more replicas now (a panic), or will need them when a replica that is
started now is ready. It does not grow while pods cannot be created.

A revision shrinks to the number of replicas that carried the highest load of the window, with a margin. The margin is smaller where
arrivals surely fall by a trend, because the load is lower when a replica that is missing could be back. A revision never shrinks
while a reading is missing or stale, during a panic, or below the number that the serving replicas can make up for. The
window is as long as a lost replica takes to come back: its start-up time. It doubles for each small decrease that had to
be taken back lately. Where a start takes longer than five minutes, a revision also has replicas for what may arrive within one;
with `headroom` it has replicas for so much more than what usually arrives.

A revision goes to zero after `idleToZero` without a request, and leaves zero with the first request that is held.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.scaling import first_tokens, policies
from pagefleet_operator.domain.scaling.blind import estimated
from pagefleet_operator.domain.scaling.demand import Demand, demand, first_token_of, unread
from pagefleet_operator.domain.scaling.inflow import STALE_LOAD
from pagefleet_operator.domain.scaling.load import Totals, totals
from pagefleet_operator.domain.scaling.policies import bounded
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.status.observation import RevisionReading
from pagefleet_operator.domain.status.sample import ServiceLoad
from pagefleet_operator.domain.status.status import ScalingRecord

MIN_WINDOW_SECONDS, MAX_WINDOW_SECONDS = 30.0, 300.0
LEARNED_SHARE = 0.3  # weight of a new start-up time in the mean
UNUSUAL, UNUSUAL_SECONDS = 3.0, 30.0  # times the mean, and seconds beyond that: a start counts as no longer than that
MARGIN = 1.25  # above the highest need: noise of +-10 % has a factor of 1.1 / 0.9 between its ends
LEAST_SPARE = 0.5  # replicas: a few are wrong by so much when they are rounded, whatever the trend is
CALM_WINDOW_SECONDS, MAX_CALM_WINDOW_SECONDS = 900.0, 1700.0
CLOSE = 0.02  # of a replica: a smaller lack does not justify another one
IDLE_STORED_SECONDS = 60.0
AT_MAXIMUM, COST_CEILING = "AtMaximum", "CostCeiling"  # reasons of a limit: the spec's, and the budget's
UNREACHABLE = "TargetUnreachable"  # the reason where no number of replicas keeps a target
MAX_STARTUP_SECONDS = 1800.0  # of any pod; a history is that long


@dataclass(frozen=True)
class Recommendation:
    """`replicas` are within the bounds. `message` gives the numbers behind a change, "" when nothing changes.

    `limit` is the reason why there are fewer replicas than the load needs (AT_MAXIMUM, COST_CEILING, "Refused") or why
    nothing may shrink ("SignalsMissing") or why a target counts for nothing (UNREACHABLE), with `limit_message`; "" when nothing is
    in the way. `needed` is the need of
    the load in replicas, None when it is not known.
    """

    replicas: int
    record: ScalingRecord
    message: str = ""
    limit: str = ""
    limit_message: str = ""
    needed: float | None = None


@dataclass(frozen=True)
class _Case:
    """The data of one recommendation. `current` is the number of replicas that was decided last."""

    totals: Totals
    load: ServiceLoad | None
    current: int
    record: ScalingRecord
    scaling: Scaling
    now: float

    def stay(self, needed: float | None = None) -> Recommendation:
        """Recommend the present number."""
        return Recommendation(self.current, self.record, needed=needed)

    def change(self, replicas: int, reason: str, needed: float | None = None) -> Recommendation:
        """Recommend another number and store the change."""
        steps = policies.remembered(self.record.steps, replicas - self.current, self.now)
        message = f"{self.current} -> {_replicas(replicas)}: {reason}"
        return Recommendation(replicas, replace(self.record, steps=steps), message, needed=needed)


def recommend(
    reading: RevisionReading,
    load: ServiceLoad | None,
    desired: int | None,
    before: ScalingRecord,
    scaling: Scaling,
    now: float,
) -> Recommendation:
    """`size` of a revision as it was read in the cluster."""
    return size(totals(reading, now), load, desired, before, scaling, now)


def size(
    totals: Totals,
    load: ServiceLoad | None,
    desired: int | None,
    before: ScalingRecord,
    scaling: Scaling,
    now: float,
) -> Recommendation:
    """Recommend a number of replicas.

    `desired` is the last decision, None before the first one; a number that somebody else set since does not count.
    `before` is the record of the last decision about this revision. `load` is None when no gateway answered; then
    nothing shrinks, because the requests that wait in a gateway are not known.
    """
    current = desired if desired is not None else max(1, scaling.min)
    case = _Case(totals, load, current, _learn(totals, before), scaling, now)
    first = first_token_of(totals.latest, [*totals.history, totals.latest], load)
    record = first_tokens.learned(case.record, totals, first, scaling.target.ttft, now)
    case = replace(case, record=record, scaling=first_tokens.within_reach(scaling, record))
    recommended = _woken(case) if desired == 0 and scaling.idle_to_zero is not None else _sized(case)
    if recommended.limit:
        return recommended
    if totals.refused:
        message = f"no more replicas can be created: {totals.refused}"
        return replace(recommended, limit="Refused", limit_message=message)
    words = first_tokens.unreachable(scaling, record)
    return replace(recommended, limit=UNREACHABLE, limit_message=words) if words else recommended


def _sized(case: _Case) -> Recommendation:
    scaling, now = case.scaling, case.now
    case = replace(case, current=bounded(case.current, scaling))
    if (guess := estimated(case.totals, case.load)) is not None:
        return _by_gateways(case, guess)
    if not case.totals.latest.fresh:
        return _not_shrinking(case.stay(), unread(case.totals) if case.totals.latest.serving else "")
    case = replace(case, record=_idle(case))
    if _sleeps(case):
        slept = now - (case.record.idle_since or now)
        return case.change(0, f"no request for {slept:.0f} s")
    window = _window(_startup(case), scaling)
    need = _demand(case, window)
    panicking, case = _panic(case, need)
    needed = _needed(case, need, panicking)
    if needed > case.current:
        return _grow(case, need, needed, panicking)
    return _shrink(case, need, window)


def _by_gateways(case: _Case, guess: Totals) -> Recommendation:
    """Grow by what the gateways count while no engine reports its load; nothing shrinks."""
    missing = unread(case.totals)
    case = replace(case, totals=guess)
    need = _demand(case, _window(_startup(case), case.scaling))
    need = replace(need, why=f"no replica reports its load; by what the gateways count, {need.why}")
    panicking, case = _panic(case, need)
    needed = _needed(case, need, panicking)
    found = _grow(case, need, needed, panicking) if needed > case.current else case.stay(max(need.steady, need.ahead))
    return found if found.limit else _not_shrinking(found, missing)


def _startup(case: _Case) -> float:
    """Seconds that a replica takes to start: as learned, else as told. A first pod that takes longer shows that it is more."""
    if case.record.startup is not None:
        return min(case.record.startup, MAX_STARTUP_SECONDS)
    return max(case.scaling.startup, min(case.totals.starting_for, MAX_STARTUP_SECONDS))


def _demand(case: _Case, window: float) -> Demand:
    calm = window if case.scaling.stabilization is not None else max(window, CALM_WINDOW_SECONDS)
    calm = min(MAX_CALM_WINDOW_SECONDS, calm * 2 ** policies.turns(case.record.steps, case.current, case.now))
    need = demand(case.totals, case.load, case.scaling, _startup(case), window, calm)
    if need.spare > max(need.steady, need.ahead):
        need = replace(need, why=f"{need.why}; {need.spare_why} needs {need.spare:.2f} replicas")
    if case.totals.hung:
        return replace(need, why=f"{need.why}; {', '.join(case.totals.hung)} generate nothing and count as missing")
    return need


def _needed(case: _Case, need: Demand, panicking: bool) -> int:
    """Replicas that the load needs or may need soon, with one more for each that hangs. A maximum is no obstacle to spare ones."""
    spare = min(need.spare, case.scaling.max)
    most = max(need.steady, need.ahead, spare, need.now if panicking else 0.0)
    return math.ceil(most - CLOSE) + len(case.totals.hung)


def _learn(totals: Totals, before: ScalingRecord) -> ScalingRecord:
    """The record with the start-up times of new pods: an exponentially weighted mean.

    One odd time moves it little. A pod may have waited hours for a node or for a Secret, and to an operator that has begun
    just now, one that was not ready for a moment after days looks as if it had started for so long.
    """
    record = before
    for when, seconds in sorted(totals.startups):
        if (before.learned is None or when > before.learned) and seconds >= 0:
            taken = min(seconds, MAX_STARTUP_SECONDS)
            old = record.startup if record.startup is not None and record.startup <= MAX_STARTUP_SECONDS else taken
            taken = min(taken, UNUSUAL * old + UNUSUAL_SECONDS)
            record = replace(record, startup=round(old + LEARNED_SHARE * (taken - old), 1), learned=when)
    return record


def _window(startup: float, scaling: Scaling) -> float:
    """Seconds whose highest need a decrease leaves. No readings cover more than the longest one."""
    if scaling.stabilization is not None:
        return min(scaling.stabilization, MAX_CALM_WINDOW_SECONDS)
    return min(MAX_WINDOW_SECONDS, max(MIN_WINDOW_SECONDS, startup))


def _panic(case: _Case, need: Demand) -> tuple[bool, _Case]:
    """Whether the load needs at least `panic.threshold` times the serving replicas.

    The case's record stores the time of the panic; it is written only a few times in a window.
    """
    record, scaling, now = case.record, case.scaling, case.now
    panicking = math.ceil(need.now - CLOSE) >= scaling.panic_threshold * case.totals.latest.serving
    since = record.panic_since if record.panic_since is not None and record.panic_since <= now else None
    if panicking and (since is None or now - since > scaling.panic_window / 4):
        return True, replace(case, record=replace(record, panic_since=now))
    if not panicking and since is not None and now - since >= scaling.panic_window:
        since = None
    return panicking, replace(case, record=replace(record, panic_since=since))


def _grow(case: _Case, need: Demand, needed: int, panicking: bool) -> Recommendation:
    current, record, scaling = case.current, case.record, case.scaling
    stay = case.stay(max(need.steady, need.ahead))
    if current >= scaling.max:
        kind, message = at_most(current, scaling)
        return replace(stay, limit=kind, limit_message=message)
    if case.totals.refused or case.totals.stuck:
        message = f"the load needs more than {_replicas(current)}, and no more can be created: {case.totals.refused}"
        return replace(stay, limit="Refused", limit_message=message)
    if not panicking and scaling.up_stabilization:
        since = record.above_since if record.above_since is not None and record.above_since <= case.now else case.now
        if case.now - since < scaling.up_stabilization:
            return replace(stay, record=replace(record, above_since=since))
    limited = policies.limited(bounded(needed, scaling), current, record.steps, scaling, case.now)
    if limited == current:
        return stay
    return replace(case, record=replace(record, above_since=None)).change(limited, need.why, stay.needed)


def at_most(current: int, scaling: Scaling) -> tuple[str, str]:
    """The reason of a limit, and its message, of a load that needs more than the most replicas allowed."""
    most = scaling.capped or f"spec.scaling.max is {scaling.max}"
    message = f"the load needs more than {_replicas(current)}; {most}: raise it or reduce the load"
    return (COST_CEILING if scaling.capped else AT_MAXIMUM), message


def _shrink(case: _Case, need: Demand, window: float) -> Recommendation:
    case = replace(case, record=replace(case.record, above_since=None))
    current, record, scaling, now = case.current, case.record, case.scaling, case.now
    stay = _not_shrinking(case.stay(max(need.steady, need.ahead)), need.missing)
    up = policies.last_up(record.steps, now)
    grown = up is not None and now - up < max(window, scaling.stabilization or 0.0)
    # A replica that was added for first tokens would go before anybody saw what it does.
    late = record.late_seconds is not None if need.late is None else need.late
    if need.missing or late or need.peak is None or record.panic_since is not None or grown:
        return stay
    least = min(scaling.max, _least(case, need, need.peak) + len(case.totals.hung))
    if least >= current or case.totals.latest.serving < least:
        return stay
    limited = policies.limited(least, current, record.steps, scaling, now)
    reason = f"{need.why}; the highest need of {window:.0f} s was {need.peak:.2f} replicas"
    return stay if limited == current else case.change(limited, reason, need.steady)


def _least(case: _Case, need: Demand, peak: float) -> int:
    """The fewest replicas that the load allows, within the bounds."""
    current, steps, scaling = case.current, case.record.steps, case.scaling
    present = max(need.now, need.steady, need.ahead)
    highest = max(peak, present)
    falling = highest * MARGIN * (1 - need.decline * _startup(case))  # when a replica that is missing could be back
    least = math.ceil(max(falling, highest + min(LEAST_SPARE, highest * (MARGIN - 1))) - 1e-9)
    noisy = scaling.stabilization is None and not need.decline and policies.noisy(steps, current, case.now)
    if noisy and least * MARGIN > current:
        least = current  # noise has raised the fleet lately, and would take so small a decrease back
    if need.calm_peak is not None:
        least = min(least, math.ceil(max(need.calm_peak, present) * (1 + scaling.tolerance) - 1e-9))
    if need.replica.sure_tokens is None:
        least = max(least, current - 1)
    least = max(least, math.ceil(need.kept * MARGIN - 1e-9))
    return bounded(max(1, least), scaling)


def _not_shrinking(stay: Recommendation, missing: str) -> Recommendation:
    return replace(stay, limit="SignalsMissing" if missing else "", limit_message=missing)


def _woken(case: _Case) -> Recommendation:
    """From zero replicas: one for the first held request, more when many requests are held already."""
    case = replace(case, record=replace(case.record, idle_since=None, panic_since=None))
    held = case.load.held if case.load is not None else 0
    if not (case.scaling.wake or held):
        return case.stay()
    slots = case.totals.slots
    replicas = bounded(max(1, math.ceil(held / slots) if slots else 1), case.scaling)
    reason = f"{held} requests wait in the gateways" if held else "an entry of spec.scaling.schedule asks for replicas"
    return case.change(replicas, reason)


def _idle(case: _Case) -> ScalingRecord:
    """The record with the time since when no request arrived, ran or waited.

    The time is stored once it has lasted a minute, so that ordinary traffic does not write to the status. It stays while a reading is
    missing: gateways count the requests of an hour, and what came meanwhile is in their next answer.
    """
    record, scaling, load, now = case.record, case.scaling, case.load, case.now
    latest = case.totals.latest
    if scaling.idle_to_zero is None or latest.load.running or latest.load.waiting or (load is not None and load.held):
        return replace(record, idle_since=None)
    if load is None or not _is_known(case):
        return record
    steps = 0
    while steps < len(load.arrivals) and load.arrivals[-1 - steps] <= 0:
        steps += 1
    arrived, last = steps < len(load.arrivals), now - load.age - steps * load.step
    last = max(last, _awake_since(case)) if not arrived else last
    before = record.idle_since if record.idle_since is not None and record.idle_since <= now else None
    if before is not None and (not arrived or last <= before + load.step):
        return replace(record, idle_since=before)
    lasted = min(IDLE_STORED_SECONDS, scaling.idle_to_zero) if arrived else 0.0
    return replace(record, idle_since=last if now - last >= lasted else None)


def _is_known(case: _Case) -> bool:
    """Whether the gateways and every serving replica have been read."""
    return case.totals.latest.complete and case.load is not None and case.load.age <= STALE_LOAD


def _awake_since(case: _Case) -> float:
    """The time at which the revision began to serve or was woken.

    The gateways' windows reach further back than that, and the newest window does not yet contain the request that woke
    the revision.
    """
    samples = (*case.totals.history, case.totals.latest)
    serving = next((sample.time for sample in samples if sample.serving), case.now)
    return max(serving, policies.last_up(case.record.steps, case.now) or serving)


def _sleeps(case: _Case) -> bool:
    since, scaling = case.record.idle_since, case.scaling
    if scaling.idle_to_zero is None or scaling.wake or since is None or not _is_known(case):
        return False
    return case.now - since >= scaling.idle_to_zero


def _replicas(count: int) -> str:
    return f"{count} replica{'' if count == 1 else 's'}"
