"""`.spec.capacityPlan` as typed values: the numbers by which replicas were planned, and which of them can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pagefleet_contract.quantity import fraction

TOLERANCE = "15%"


class Assumption(StrEnum):
    """A number of the plan that can be measured, by its path in `spec.capacityPlan`."""

    RATE = "requestsPerSecond"
    OUTPUT_TOKENS = "perRequest.outputTokens"
    KV_TOKENS = "perRequest.kvTokens"
    THROUGHPUT = "perReplica.outputTokensPerSecond"
    KV_CACHE = "perReplica.kvCacheTokens"


WORSE_WHEN_LESS = (Assumption.THROUGHPUT, Assumption.KV_CACHE)  # of the others more is worse


@dataclass(frozen=True)
class CapacityPlan:
    """`planned` has the assumptions that are stated. `concurrency` is in requests that run in a replica at once, `shared_tokens` in
    tokens of KV that a replica holds once for all of them, `peak_throughput` in tokens per second of a full replica. None where the plan does not say."""

    tolerance: float
    planned: Mapping[Assumption, float]
    replicas: int | None = None
    concurrency: float | None = None
    shared_tokens: int = 0
    peak_throughput: float | None = None


def capacity_plan(raw: Mapping[str, Any] | None) -> CapacityPlan | None:
    """From `spec.capacityPlan`; None where it is not given."""
    if raw is None:
        return None
    request, replica = raw.get("perRequest") or {}, raw.get("perReplica") or {}
    numbers = {
        Assumption.RATE: raw.get("requestsPerSecond"),
        Assumption.OUTPUT_TOKENS: request.get("outputTokens"),
        Assumption.KV_TOKENS: request.get("kvTokens"),
        Assumption.THROUGHPUT: replica.get("outputTokensPerSecond"),
        Assumption.KV_CACHE: replica.get("kvCacheTokens"),
    }
    return CapacityPlan(
        tolerance=fraction(raw.get("tolerance", TOLERANCE)),
        planned={name: float(value) for name, value in numbers.items() if value is not None},
        replicas=raw.get("replicas"),
        concurrency=replica.get("concurrency"),
        shared_tokens=request.get("sharedTokens", 0),
        peak_throughput=replica.get("peakOutputTokensPerSecond"),
    )
