"""The stored costs of a service and how they stand to `spec.cost.budget`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Spending(StrEnum):
    """How a service stands to its budget, from the best to the worst; the reasons of the condition WithinBudget."""

    WITHIN = "WithinBudget"
    AT_RISK = "ForecastAboveBudget"
    SHEDDING = "NearlySpent"  # the classes of spec.cost.budget.shed are refused
    REACHED = "BudgetReached"  # and replicas are capped


@dataclass(frozen=True)
class SpendingDay:
    """What the service has cost in `seconds` of one day (UTC, "2026-11-24")."""

    day: str
    amount: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class SpendingRecord:
    """The cost of the service in a calendar month, in the currency of `spec.cost`, from `since` to `until`.

    It costs `per_hour` from `until` on. `forecast` is the cost of the whole month, which ends at `resets`. `shed` are the classes of
    requests that the gateways refuse; `max_replicas` are those that may run once the budget is spent. `days` are the latest.
    """

    month: str
    since: float
    until: float
    resets: float
    state: Spending = Spending.WITHIN
    budget: float = 0.0
    spent: float = 0.0
    forecast: float = 0.0
    per_hour: float = 0.0
    max_replicas: int = 1
    shed: tuple[str, ...] = ()
    days: tuple[SpendingDay, ...] = ()
