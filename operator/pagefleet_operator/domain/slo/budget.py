"""The error budgets of a service: the record of each objective in `.status.slo`.

The budget of an objective is the number of requests that may miss it in the window: the allowed share of all requests. The burn
rate is the missed share of the last hour divided by the allowed share. Source: Site Reliability Workbook, chapters 2 and 5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pagefleet_contract.slo import Objective
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.slo.days import DAY_SECONDS, day_number, day_text
from pagefleet_operator.domain.spec.schema.slo import SLO
from pagefleet_operator.domain.status.records.slo import DayRecord, ObjectiveRecord, SLORecord
from pagefleet_operator.domain.status.sample import Counts, ObjectiveCounts, SLOReading

RECORD_SECONDS = 60.0  # the record is written at most this often
MIN_MISSED = 10
SOON_SECONDS = 3600.0
NO_COUNTS = ObjectiveCounts()


def record(slo: SLO, reading: SLOReading | None, before: SLORecord | None, now: float) -> SLORecord | None:
    """The record of a service's budgets; `before` while that says the same, or is less than a minute old and of the same spec."""
    if not slo.objectives:
        return None
    if before is not None and _is_of(before, slo) and 0 <= now - before.written < RECORD_SECONDS:
        return before
    counts = reading.counts if reading is not None else _stored(before)
    seconds = reading.seconds if reading is not None else 0.0
    objectives = tuple(
        _objective(one, counts.get(one.key, NO_COUNTS), slo.window, seconds, now) for one in slo.objectives
    )
    until = reading.until if reading is not None else before.until if before is not None else 0.0
    made = _protected(SLORecord(until, now, slo.window, _worst(objectives), objectives), slo, now)
    return (
        before if before is not None and replace(made, until=before.until, written=before.written) == before else made
    )


def _protected(made: SLORecord, slo: SLO, now: float) -> SLORecord:
    """The record with the objectives that are about to break, and what is given up for them.

    An objective of a class that is given up asks for nothing: its own requests would be refused for it.
    """
    rule = slo.at_risk
    if rule is None:
        return made
    given_up = {one.key for one in slo.objectives if one.priority in rule.shed}
    names = tuple(one.name for one in made.objectives if one.key not in given_up and _is_at_risk(one, rule.left, now))
    return replace(made, at_risk=names, shed=rule.shed, max_output_tokens=rule.max_output_tokens) if names else made


def _is_at_risk(one: ObjectiveRecord, share: float, now: float) -> bool:
    """Whether more requests miss it than may, and its budget is nearly used up. A few misses are chance."""
    if one.left is None or one.burn is None or one.burn <= 1 or one.missed < MIN_MISSED:
        return False
    return one.left < share or (one.runs_out is not None and one.runs_out < now + SOON_SECONDS)


def _is_of(record: SLORecord, slo: SLO) -> bool:
    """Whether a record is about these objectives and this window."""
    promises = [(one.key, one.promise) for one in record.objectives]
    return promises == [(one.key, one.promise) for one in slo.objectives] and record.window == slo.window


def _objective(
    objective: Objective, counts: ObjectiveCounts, window: float, seconds: float, now: float
) -> ObjectiveRecord:
    first = math.floor((now - window) / DAY_SECONDS)  # the day on which the window begins counts as a whole
    days = {day: one for day, one in sorted(counts.days.items()) if day >= first}
    requests, missed = (sum(one[place] for one in days.values()) for place in (0, 1))
    budget = objective.allowed * requests
    recent, recently_missed = counts.recent
    return ObjectiveRecord(
        name=objective.name,
        key=objective.key,
        promise=objective.promise,
        requests=requests,
        missed=missed,
        left=round(1 - missed / budget, 4) if requests else None,
        burn=round(recently_missed / recent / objective.allowed, 2) if recent else None,
        runs_out=_end(budget - missed, counts.recent, objective.allowed, seconds, now),
        days=tuple(DayRecord(day_text(day), *one) for day, one in days.items()),
    )


def _end(left: float, recent: Counts, allowed: float, seconds: float, now: float) -> float | None:
    """The time at which `left` more misses have happened beyond the allowed ones, at the last hour's rates; None: never."""
    requests, missed = recent
    excess = missed - allowed * requests
    return now + left * seconds / excess if left > 0 and excess > 0 else None


def _worst(objectives: tuple[ObjectiveRecord, ...]) -> str:
    """The smallest share that is left, for the column of `kubectl get`."""
    known = [one.left for one in objectives if one.left is not None]
    return f"{max(-9.99, min(known)):.1%}" if known else ""


def _stored(before: SLORecord | None) -> Mapping[str, ObjectiveCounts]:
    """The counts of a record, for a changed spec while no gateway answers."""
    result = dict[str, ObjectiveCounts]()
    for one in before.objectives if before is not None else ():
        days = {
            number: (entry.requests, entry.missed)
            for entry in one.days
            if (number := day_number(entry.day)) is not None
        }
        result[one.key] = ObjectiveCounts(days)
    return result
