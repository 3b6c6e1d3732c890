"""`.spec.cost`: its schema and its typed values, in the currency that its user has in mind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_operator.domain.base.revision_spec import RevisionSpec
from pagefleet_operator.domain.spec.schema.fields import number, record

COST = record(
    "What replicas cost, and how much they may cost.",
    {
        "perAcceleratorHour": number(
            "The price of one accelerator (without any: of a pod) for an hour, in your currency.", 0, 1e6
        ),
        "ceilingPerHour": number("Replicas that would cost more are not started.", 0, 1e9),
    },
)


@dataclass(frozen=True)
class Cost:
    """None: not given."""

    per_accelerator_hour: float | None = None
    ceiling_per_hour: float | None = None

    def of_replica(self, pods: RevisionSpec) -> float | None:
        """Return the cost of one replica, all its pods, for an hour; None when the price is not known."""
        price = self.per_accelerator_hour
        return None if price is None else float(price) * max(1, pods.accelerators) * pods.nodes


def cost(raw: Mapping[str, Any]) -> Cost:
    """From `spec.cost`; {} where it is not given."""
    return Cost(raw.get("perAcceleratorHour"), raw.get("ceilingPerHour"))
