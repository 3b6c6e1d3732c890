"""The capacity plan for people: the condition CapacityAsPlanned, and an Event when it turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagefleet_operator.domain.capacity_plan.consequence import Consequence, consequence
from pagefleet_operator.domain.spec.capacity_plan import WORSE_WHEN_LESS, Assumption, CapacityPlan
from pagefleet_operator.domain.status.codec import time_to_the_second
from pagefleet_operator.domain.status.condition import FALSE, TRUE, UNKNOWN, NewCondition
from pagefleet_operator.domain.status.records.capacity_plan import AssumptionRecord, CapacityPlanRecord, Finding
from pagefleet_operator.domain.status.status import Condition
from pagefleet_operator.domain.status.turn import Journal

CONDITION = "CapacityAsPlanned"
AS_PLANNED, WORSE, BETTER, TOO_LITTLE = "AsPlanned", "WorseThanPlanned", "BetterThanPlanned", "TooLittleData"
UNITS = {
    Assumption.RATE: "requests/s in the busiest five minutes of an hour",
    Assumption.OUTPUT_TOKENS: "tokens",
    Assumption.KV_TOKENS: "tokens",
    Assumption.THROUGHPUT: "tokens/s",
    Assumption.KV_CACHE: "tokens",
}


def conditions(
    plan: CapacityPlan | None, record: CapacityPlanRecord | None, canary: str, replica_cost: float | None
) -> list[NewCondition]:
    """The condition, only where the spec has a plan. It is False when an assumption is off, and True when each one holds."""
    if plan is None or record is None:
        return []
    shown = about(record, canary)
    off = [one for one in shown if one.finding in (Finding.ABOVE, Finding.BELOW)]
    unknown = [one for one in shown if one.finding is Finding.UNKNOWN]
    holding = [one for one in shown if one.finding is Finding.HOLDS]
    parts = [_off(one, plan) for one in off]
    if off:
        parts += _meaning(consequence(plan, _measured(off)), replica_cost)
    parts += [_unknown(one, plan) for one in unknown]
    if holding:
        numbers = ", ".join(f"{one.name} {_number(one.planned)} ({_number(one.measured)})" for one in holding)
        parts.append(f"as planned within {plan.tolerance:.0%} (measured): {numbers}")
    message = "; ".join(parts)
    if off:
        return [(CONDITION, FALSE, WORSE if any(map(_is_worse, off)) else BETTER, message)]
    return [(CONDITION, UNKNOWN, TOO_LITTLE, message)] if unknown else [(CONDITION, TRUE, AS_PLANNED, message)]


def announce(made: Sequence[NewCondition], before: Iterable[Condition], journal: Journal) -> None:
    """Make it an Event when the measured numbers leave the plan, get worse, or are as planned again."""
    stored = next((one for one in before if one.type == CONDITION), None)
    earlier = stored.reason if stored is not None else ""
    for _, _, reason, message in made:
        if reason == earlier:
            continue
        if reason == WORSE:
            journal.note("CapacityWorseThanPlanned", message, warning=True)
        elif reason == BETTER and earlier != WORSE:
            journal.note("CapacityBetterThanPlanned", message)
        elif reason == AS_PLANNED and earlier in (WORSE, BETTER):
            journal.note("CapacityAsPlanned", message)


def about(record: CapacityPlanRecord, canary: str) -> list[AssumptionRecord]:
    """Each assumption once: what is found about the canary; until something is, what is found about the stable revision."""
    best: dict[str, AssumptionRecord] = {}
    for one in record.assumptions:
        known = best.get(one.name)
        if known is None or (one.finding is not Finding.UNKNOWN and (one.revision == canary or not known.finding)):
            best[one.name] = one
    return list(best.values())


def _measured(off: Iterable[AssumptionRecord]) -> dict[Assumption, float]:
    return {Assumption(one.name): one.measured for one in off if one.measured is not None}


def _is_worse(one: AssumptionRecord) -> bool:
    return (one.finding is Finding.BELOW) is (one.name in WORSE_WHEN_LESS)


def _off(one: AssumptionRecord, plan: CapacityPlan) -> str:
    """An assumption that does not hold, with its numbers, the revision and the time."""
    measured = one.measured if one.measured is not None else one.planned
    share = f"{abs(measured / one.planned - 1):.0%} {'more' if one.finding is Finding.ABOVE else 'less'}"
    number = _number(measured)
    if one.low != one.high:
        number += f" ({_number(one.low)} to {_number(one.high)})"
        if measured in (one.low, one.high):  # only a bound is known
            number, share = f"{_number(one.low)} to {_number(one.high)}", f"at least {share}"
    unit = _unit(one, plan)
    whose = f" of revision {one.revision}" if one.revision else ""
    return (
        f"{one.name}: {_number(one.planned)} {unit} planned, {number} measured{whose} until "
        f"{time_to_the_second(one.until)}: {share}"
    )


def _unit(one: AssumptionRecord, plan: CapacityPlan) -> str:
    name = Assumption(one.name)
    return f"{UNITS[name]} with {plan.concurrency:g} running requests" if name is Assumption.THROUGHPUT else UNITS[name]


def _meaning(found: Consequence | None, replica_cost: float | None) -> list[str]:
    """What the measured numbers mean for the planned load."""
    if found is None:
        return []
    if found.needed == found.planned:
        return [f"the planned load still needs {found.planned} replicas"]
    more = found.needed - found.planned
    cost = ""
    if replica_cost is not None:
        cost = f", which cost {abs(more) * replica_cost:,.2f} {'more' if more > 0 else 'less'} per hour"
    return [f"the planned load needs {found.needed} replicas, not {found.planned}{cost}"]


def _unknown(one: AssumptionRecord, plan: CapacityPlan) -> str:
    """An assumption on which too little is known, with what is known."""
    if one.low is None:
        return f"{one.name}: too little data to compare with {_number(one.planned)}"
    most = f"{_number(one.low)} to {_number(one.high)}" if one.high is not None else f"at least {_number(one.low)}"
    return f"{one.name}: {_number(one.planned)} {_unit(one, plan)} planned, {most} by the load so far: not known closely enough"


def _number(value: float | None) -> str:
    if value is None:
        return "any"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
