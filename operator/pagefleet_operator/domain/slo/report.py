"""The error budgets for people: the condition SLOMet, and an Event when a budget is used up or is back."""

from __future__ import annotations

from pagefleet_operator.domain.slo.days import DAY_SECONDS
from pagefleet_operator.domain.status.condition import FALSE, TRUE, UNKNOWN, NewCondition
from pagefleet_operator.domain.status.records.slo import ObjectiveRecord, SLORecord
from pagefleet_operator.domain.status.turn import Journal

CONDITION = "SLOMet"


def conditions(slo: SLORecord | None) -> list[NewCondition]:
    """The condition, only where the spec has objectives."""
    if slo is None or not slo.objectives:
        return []
    if all(one.left is None for one in slo.objectives):
        return [(CONDITION, UNKNOWN, "NoRequests", "no request has counted in an objective yet")]
    exhausted = [one for one in slo.objectives if _is_exhausted(one)]
    shown = exhausted or slo.objectives
    message = "; ".join([*(sentence(one, slo) for one in shown), *_given_up(slo)])
    if exhausted:
        return [(CONDITION, FALSE, "BudgetExhausted", message)]
    return [(CONDITION, TRUE, "AtRisk" if slo.at_risk else "WithinBudget", message)]


def _given_up(slo: SLORecord) -> list[str]:
    """What the gateways do for the objectives that are about to break."""
    if not slo.at_risk:
        return []
    what = [f"refuse requests of priority {', '.join(slo.shed)}"] if slo.shed else []
    what += [f"give answers at most {slo.max_output_tokens} new tokens"] if slo.max_output_tokens else []
    return [f"for {', '.join(slo.at_risk)} the gateways {' and '.join(what)}"]


def announce(slo: SLORecord | None, before: SLORecord | None, journal: Journal) -> None:
    """Make it an Event when a budget is used up, and when it is back."""
    if slo is None:
        return
    gone_before = {one.key for one in before.objectives if _is_exhausted(one)} if before is not None else set[str]()
    for one in slo.objectives:
        if _is_exhausted(one) and one.key not in gone_before:
            journal.note("SLOBudgetExhausted", sentence(one, slo), warning=True)
        elif one.key in gone_before and not _is_exhausted(one):
            journal.note("SLOBudgetRestored", sentence(one, slo))
    risked_before = before.at_risk if before is not None else ()
    if slo.at_risk and not risked_before:
        risked = [sentence(one, slo) for one in slo.objectives if one.name in slo.at_risk]
        journal.note("SLOAtRisk", "; ".join([*risked, *_given_up(slo)]), warning=True)
    elif risked_before and not slo.at_risk:
        journal.note("SLONoLongerAtRisk", f"{', '.join(risked_before)}: nothing is given up any more")


def sentence(objective: ObjectiveRecord, slo: SLORecord) -> str:
    """One objective with its numbers."""
    days = f"{slo.window / DAY_SECONDS:g} d"
    counts = f"{objective.missed} of {objective.requests} requests missed it in {days}"
    if objective.left is None:
        return f"{objective.name} ({objective.promise}): no request has counted yet"
    left = f"{objective.left:.1%} of its error budget is left" if objective.left >= 0 else "its error budget is used up"
    return f"{objective.name} ({objective.promise}): {left}, {counts}{_pace(objective)}"


def _pace(objective: ObjectiveRecord) -> str:
    if objective.burn is None or objective.burn <= 1:
        return ""
    return f"; in the last hour {objective.burn:g} times as many as allowed"


def _is_exhausted(objective: ObjectiveRecord) -> bool:
    return objective.left is not None and objective.left < 0
