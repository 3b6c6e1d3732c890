"""The budget for people: the condition WithinBudget, and an Event when more is given up, or no longer."""

from __future__ import annotations

from pagefleet_operator.domain.cost.spending import RANK
from pagefleet_operator.domain.status.codec import time_to_the_second
from pagefleet_operator.domain.status.condition import FALSE, TRUE, NewCondition
from pagefleet_operator.domain.status.records.spending import Spending, SpendingRecord
from pagefleet_operator.domain.status.turn import Journal

CONDITION = "WithinBudget"
EVENTS = {
    Spending.AT_RISK: "BudgetAtRisk",
    Spending.SHEDDING: "BudgetNearlySpent",
    Spending.REACHED: "BudgetReached",
}


def conditions(spending: SpendingRecord | None) -> list[NewCondition]:
    """The condition, only where the spec has a budget. It is False while something is given up."""
    if spending is None:
        return []
    status = FALSE if RANK[spending.state] >= RANK[Spending.SHEDDING] else TRUE
    return [(CONDITION, status, spending.state.value, sentence(spending))]


def announce(spending: SpendingRecord | None, before: SpendingRecord | None, journal: Journal) -> None:
    """Make each change for the worse a warning, and the way back an Event."""
    state = spending.state if spending is not None else Spending.WITHIN
    earlier = before.state if before is not None else Spending.WITHIN
    if spending is None or state is earlier:
        return
    if RANK[state] > RANK[earlier]:
        journal.note(EVENTS[state], sentence(spending), warning=True)
    elif RANK[earlier] >= RANK[Spending.SHEDDING]:
        journal.note("BudgetRestored", sentence(spending))


def sentence(spending: SpendingRecord) -> str:
    """The budget with its numbers, and what is given up until when."""
    about = (
        f"{spending.spent:,.2f} of {spending.budget:,.2f} are spent in {spending.month}, counted since "
        f"{time_to_the_second(spending.since)}; forecast for the month: {spending.forecast:,.2f}"
    )
    given_up = []
    if spending.shed:
        given_up.append(f"requests of priority {', '.join(spending.shed)} are refused")
    if spending.state is Spending.REACHED:
        given_up.append(
            f"at most {spending.max_replicas} replica{'s' if spending.max_replicas > 1 else ''} run, without warm spares"
        )
    if not given_up:
        return about
    ends = time_to_the_second(spending.resets)
    return f"{about}; {' and '.join(given_up)} until {ends}, or until spec.cost.budget.perMonth is raised"
