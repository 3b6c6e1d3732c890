"""The cost of a service in a calendar month, its forecast, and what is given up for the budget of `spec.cost.budget`.

Every pod that holds accelerators counts, also one that starts, sleeps or drains: accelerators are paid for from the moment they are bound.
Between two decisions the earlier cost per hour holds, so a time without an operator counts too. The forecast adds the mean of the last
seven days for the rest of the month, because the load of a service has the week's rhythm.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from zoneinfo import ZoneInfo

from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.spec.schema.cost import Budget
from pagefleet_operator.domain.status.observation import RevisionReading
from pagefleet_operator.domain.status.records.spending import Spending, SpendingDay, SpendingRecord

RECORD_SECONDS = 900.0  # the record is written at least this often, and when what it says changes
DAY_SECONDS, HOUR_SECONDS = 86400.0, 3600.0
DAYS = 7  # of the forecast
CLEARED = 0.95  # of the budget; a forecast above the budget counts until it is below this
RANK = {state: rank for rank, state in enumerate(Spending)}


def record(
    budget: Budget | None, per_hour: float | None, before: SpendingRecord | None, scaling: Scaling, now: float
) -> SpendingRecord | None:
    """The record of the present month; `before` while that says the same and is younger than RECORD_SECONDS.

    `per_hour` is what the service costs now. None without a budget.
    """
    if budget is None or per_hour is None:
        return None
    made = _stated(_advanced(before, budget, now), budget, before, scaling, round(per_hour, 6))
    if before is None or made.until - before.until >= RECORD_SECONDS or made.until < before.until:
        return made
    same = replace(made, spent=before.spent, forecast=before.forecast, until=before.until, days=before.days) == before
    return before if same else made


def per_hour(revisions: Mapping[str, RevisionReading], prices: Mapping[str, float], usual: float) -> float:
    """What all replicas cost now, by the price of a revision's replica; `usual` where that is not known."""
    return sum(billed(reading) * prices.get(name, usual) for name, reading in revisions.items())


def billed(reading: RevisionReading) -> int:
    """The pods of a revision that hold accelerators: all but those that have no node."""
    pods = (*reading.pods, *(one.pod for one in reading.spares), *reading.prefill)
    return sum(1 for pod in pods if pod.fault is None or not pod.fault.is_placeless)


def capped(scaling: Scaling, spending: SpendingRecord | None) -> Scaling:
    """The bounds that a spent budget leaves. The budget bounds the stable revision and the canary together."""
    if spending is None or spending.state is not Spending.REACHED:
        return scaling
    most = spending.max_replicas
    affordable = most if scaling.affordable is None else min(most, scaling.affordable)
    if most >= scaling.max:
        return replace(scaling, affordable=affordable)
    message = f"spec.cost.budget of {spending.month} is spent, and allows {most}"
    return replace(scaling, min=min(scaling.min, most), max=most, affordable=affordable, capped=message)


def month(now: float, zone: str) -> tuple[str, float, float]:
    """The calendar month in a time zone: its name such as 2026-11, its beginning and its end."""
    moment = datetime.datetime.fromtimestamp(now, ZoneInfo(zone))
    begin = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)
    end = (begin + datetime.timedelta(days=32)).replace(day=1)
    return f"{begin:%Y-%m}", begin.timestamp(), end.timestamp()


def _advanced(before: SpendingRecord | None, budget: Budget, now: float) -> SpendingRecord:
    """The record with the cost until now, in the month of now."""
    name, begin, end = month(now, budget.zone)
    if before is None:
        return SpendingRecord(month=name, since=now, until=now, resets=end)
    hours = max(0.0, now - before.until) / HOUR_SECONDS
    spent = before.spent + before.per_hour * hours
    since = before.since
    if before.month != name:
        spent = before.per_hour * min(hours, max(0.0, now - begin) / HOUR_SECONDS)
        since = max(begin, min(before.until, now))
    days = _days(before, now)
    return replace(before, month=name, since=since, until=now, resets=end, spent=round(spent, 6), days=days)


def _days(before: SpendingRecord, now: float) -> tuple[SpendingDay, ...]:
    """The last days (UTC), today among them, with the time since the record added."""
    known = {one.day: one for one in before.days}
    at = max(before.until, (now // DAY_SECONDS - DAYS) * DAY_SECONDS)
    while at < now:
        end = min(now, (at // DAY_SECONDS + 1) * DAY_SECONDS)
        name = f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%Y-%m-%d}"
        day = known.get(name, SpendingDay(name))
        amount = round(day.amount + before.per_hour * (end - at) / HOUR_SECONDS, 6)
        known[name] = SpendingDay(name, amount, round(day.seconds + end - at, 1))
        at = end
    return tuple(known[name] for name in sorted(known)[-DAYS:])


def _stated(
    made: SpendingRecord, budget: Budget, before: SpendingRecord | None, scaling: Scaling, per_hour: float
) -> SpendingRecord:
    """The record with its forecast, and what is given up."""
    seconds, amount = sum(one.seconds for one in made.days), sum(one.amount for one in made.days)
    usual = amount / seconds * HOUR_SECONDS if seconds >= HOUR_SECONDS else per_hour
    forecast = round(made.spent + usual * (made.resets - made.until) / HOUR_SECONDS, 6)
    same_month = before is not None and (before.month, before.budget) == (made.month, budget.per_month)
    at_risk = before is not None and same_month and RANK[before.state] >= RANK[Spending.AT_RISK]
    if made.spent >= budget.per_month:
        state = Spending.REACHED
    elif budget.shed and made.spent >= budget.shed_at * budget.per_month:
        state = Spending.SHEDDING
    elif forecast > budget.per_month * (CLEARED if at_risk else 1.0):
        state = Spending.AT_RISK
    else:
        state = Spending.WITHIN
    return replace(
        made,
        state=state,
        budget=budget.per_month,
        forecast=forecast,
        per_hour=per_hour,
        max_replicas=budget.max_replicas if budget.max_replicas is not None else max(1, scaling.min),
        shed=budget.shed if RANK[state] >= RANK[Spending.SHEDDING] else (),
    )
