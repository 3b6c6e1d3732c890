"""A plan as the block `spec.capacityPlan` of an InferenceService, so that the operator compares it with what it measures. Pure.

The throughput is that of a replica at the planned load, which the operator sees every day, beside the peak by which replicas are counted. At
the planned load a replica runs its share of the users, or as many requests as generate its share of the tokens.
"""

from __future__ import annotations

import math
from typing import Any

from pagefleet_cli.base.errors import CommandError
from pagefleet_cli.plan import memory
from pagefleet_cli.plan.memory import KV
from pagefleet_cli.plan.report import Plan
from pagefleet_operator.domain.spec.schema import structure
from pagefleet_operator.domain.spec.schema.scaling import CAPACITY_PLAN

STEPS = 60  # of a bisection


def block(result: Plan) -> dict[str, Any]:
    """A patch of an InferenceService: {"spec": {"capacityPlan": {...}}}. Raises CommandError for a plan in which nothing fits, or that a
    spec has no room for."""
    request, one = result.request, result.replica
    if not one.users or not result.batch:
        raise CommandError("--spec: nothing fits this plan, see its warnings without --spec")
    shared = request.load.shared // request.load.page * request.load.page
    each: dict[str, Any] = {} if request.rate is None else {"outputTokens": _tidy(request.answer)}
    each["kvTokens"] = max(1, request.load.mean - shared)
    if shared:
        each["sharedTokens"] = shared
    replica: dict[str, Any] = {}
    if result.tokens_all is not None:
        concurrency = (
            math.ceil(10 * _concurrency(result) - 1e-6) / 10
        )  # rounded up: its replicas carry the planned load
        replica = {"concurrency": _tidy(concurrency), "outputTokensPerSecond": _tidy(_throughput(result, concurrency))}
        if concurrency < result.batch:
            replica["peakOutputTokensPerSecond"] = _tidy(result.tokens_all)
    replica["kvCacheTokens"] = one.pages * request.load.page
    plan: dict[str, Any] = {}
    if request.rate:
        plan["requestsPerSecond"] = _tidy(request.rate)
    if result.replicas is not None:
        plan["replicas"] = result.replicas
    made = {**plan, "perRequest": each, "perReplica": replica}
    for wrong in structure.check(made, CAPACITY_PLAN, "spec.capacityPlan"):
        raise CommandError(f"--spec: {wrong.field}: {wrong.message}: no service can state this plan")
    return {"spec": {"capacityPlan": made}}


def _tidy(value: float) -> float:
    """One digit after the point, and none for a whole number."""
    rounded = round(value, 1) if value >= 1 else value
    return int(rounded) if rounded == int(rounded) else rounded


def _concurrency(result: Plan) -> float:
    """Requests that run in a replica at the planned load; where the plan has none, as many as it may run."""
    request, replicas = result.request, result.replicas
    if replicas is None:
        return float(result.batch)
    found = [1.0]
    if request.users is not None:
        found.append(request.users / replicas)
    if request.rate is not None:
        found.append(_running(result, request.rate * request.answer / replicas))
    return min(max(found), float(result.batch))


def _running(result: Plan, tokens: float) -> float:
    """The requests at once with which a replica generates so many tokens per second."""
    low, high = 0.0, float(result.batch)
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if _throughput(result, middle) >= tokens else (middle, high)
    return high


def _throughput(result: Plan, sequences: float) -> float:
    """Tokens per second of a replica that runs so many requests at once."""
    request = result.request
    step = memory.step_seconds(result.shape, result.replica, KV[request.kv], result.card, request.load, sequences)
    return request.efficiency * sequences / step
