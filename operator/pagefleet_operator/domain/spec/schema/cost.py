"""`.spec.cost`: its schema and its typed values, in the currency that its user has in mind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_contract.names import OBJECT_NAME
from pagefleet_contract.quantity import fraction
from pagefleet_operator.domain.base.revision_spec import RevisionSpec
from pagefleet_operator.domain.spec.schema.fields import array, integer, number, part, record, text

BUDGET = record(
    "What the service may cost in a calendar month, and what it gives up for that. The condition WithinBudget shows the forecast.",
    {
        "perMonth": number("The budget of a calendar month, in your currency.", 0.01, 1e12),
        "timeZone": text("The IANA time zone in which a month begins.", longest=64, default="UTC"),
        "shed": array(
            "Names of traffic.priorities, such as batch: once `shedAt` of the budget is spent, the gateways refuse their requests.",
            text("The name of a class of requests.", pattern=OBJECT_NAME, longest=63),
            16,
        ),
        "shedAt": part("The part of the budget after which `shed` applies.", default="90%"),
        "maxReplicas": integer(
            "Replicas, a canary's among them, once the budget is spent; scaling.min (at least 1) when omitted. Warm spares end then.",
            1,
            1000,
        ),
    },
    ("perMonth",),
)

COST = record(
    "What replicas cost, and how much they may cost.",
    {
        "perAcceleratorHour": number(
            "The price of one accelerator (without any: of a pod) for an hour, in your currency.", 0, 1e6
        ),
        "ceilingPerHour": number("Replicas that would cost more are not started.", 0, 1e9),
        "budget": BUDGET,
    },
)
MANY = 1e6  # replicas, more than any spec can ask for: a price next to nothing pays for infinitely many


@dataclass(frozen=True)
class Budget:
    """`zone` is where a month begins; `shed_at` is the part of the budget after which the classes `shed` are refused."""

    per_month: float
    zone: str = "UTC"
    shed: tuple[str, ...] = ()
    shed_at: float = 0.9
    max_replicas: int | None = None


@dataclass(frozen=True)
class Cost:
    """None: not given."""

    per_accelerator_hour: float | None = None
    ceiling_per_hour: float | None = None
    budget: Budget | None = None

    def of_replica(self, pods: RevisionSpec) -> float | None:
        """Return the cost of one replica, all its pods, for an hour; None when the price is not known."""
        price = self.per_accelerator_hour
        return None if price is None else float(price) * max(1, pods.accelerators) * pods.nodes

    def affords(self, pods: RevisionSpec, spent: float = 0.0) -> int | None:
        """Return how many replicas, warm spares and prefill pods among them, the ceiling pays for beside what is `spent` an hour; None
        without a ceiling or a price."""
        each, ceiling = self.of_replica(pods), self.ceiling_per_hour
        if not each or ceiling is None:
            return None
        return int(min(max(0.0, ceiling - spent) / each, MANY) + 1e-9)


def cost(raw: Mapping[str, Any]) -> Cost:
    """From `spec.cost`; {} where it is not given."""
    return Cost(raw.get("perAcceleratorHour"), raw.get("ceilingPerHour"), _budget(raw.get("budget")))


def _budget(raw: Mapping[str, Any] | None) -> Budget | None:
    if raw is None:
        return None
    shed = tuple(raw.get("shed") or ())
    return Budget(raw["perMonth"], raw["timeZone"], shed, fraction(raw["shedAt"]), raw.get("maxReplicas"))
