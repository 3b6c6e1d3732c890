"""The stored comparison of `spec.capacityPlan` with what is measured."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Finding(StrEnum):
    """What is found about a number of a capacity plan."""

    UNKNOWN = ""
    HOLDS = "AsPlanned"
    ABOVE = "AbovePlan"
    BELOW = "BelowPlan"


@dataclass(frozen=True)
class AssumptionRecord:
    """A number of `spec.capacityPlan`, by its path there, beside what is measured of a revision ("": of the service).

    `measured` is the number that `finding` rests on, None without one; it lies between `low` and `high` (None: no bound), and the
    readings behind it end at `until`. `pending` is what the last look said: the next one must say so too.
    """

    name: str
    revision: str
    planned: float
    finding: Finding = Finding.UNKNOWN
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    until: float = 0.0
    pending: Finding = Finding.UNKNOWN


@dataclass(frozen=True)
class CapacityPlanRecord:
    """The numbers of `spec.capacityPlan` as of `written`. `tolerance` is a part of the planned number."""

    written: float
    tolerance: float
    assumptions: tuple[AssumptionRecord, ...] = ()
