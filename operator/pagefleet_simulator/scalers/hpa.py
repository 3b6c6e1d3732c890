"""Kubernetes' HorizontalPodAutoscaler (autoscaling/v2), on a queue metric, on concurrency or on busy time.

Sources: kubernetes.io "Horizontal Pod Autoscaling" (algorithm details, configurable scaling behavior) and the flags of
kube-controller-manager: --horizontal-pod-autoscaler-sync-period 15 s, -tolerance 0.1, -downscale-stabilization 300 s.
The default behavior: up by max(100 %, 4 pods) in 15 s without stabilisation; down by 100 % in 15 s, to the highest
recommendation of the last 300 s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from pagefleet_simulator.fleet.pods import Removal
from pagefleet_simulator.fleet.view import Bounds, Decision, View
from pagefleet_simulator.scalers.windows import Reading, Readings, add, largest


class Metric(StrEnum):
    """The metric that is held at the target.

    It is the number of waiting requests per pod (num_requests_waiting), the number of running and waiting requests per
    pod, or the share of time in which a pod computes (as a GPU's utilization counter shows it).
    """

    QUEUE = "queue"
    CONCURRENCY = "concurrency"
    BUSY = "busy"


@dataclass(frozen=True)
class Behavior:
    """`spec.behavior`; of several policies of a direction the one that allows the largest change counts (Max)."""

    up_pods: int = 4
    up_percent: float = 1.0
    up_period: float = 15.0
    up_stabilization: float = 0.0
    down_percent: float = 1.0
    down_period: float = 15.0
    down_stabilization: float = 300.0


@dataclass(frozen=True)
class Memory:
    """`recommended` before stabilisation; `changes` are (time, replicas before, replicas after)."""

    recommended: Readings = ()
    changes: tuple[tuple[float, int, int], ...] = ()


def desired(current: int, ratio: float, ready: int, unready: int, tolerance: float = 0.1) -> int:
    """ceil(ready x ratio), where ratio is the metric over its target, unless the ratio is within the tolerance.

    Pods that are not ready count as unused when the number should rise (`replica_calculator.go`); that must not change
    the direction of the result.
    """
    if ready == 0:
        return current
    if abs(ratio - 1.0) <= tolerance:
        return current
    if unready and ratio > 1.0:
        again = ratio * ready / (ready + unready)
        if abs(again - 1.0) <= tolerance or again < 1.0:
            return current
        return max(current, math.ceil(again * (ready + unready) - 1e-9))
    return math.ceil(ratio * ready - 1e-9)


def behave(current: int, recommended: int, memory: Memory, now: float, behavior: Behavior) -> tuple[int, Memory]:
    """Stabilise a recommendation, then limit its rate."""
    keep = max(behavior.up_stabilization, behavior.down_stabilization)
    readings = add(memory.recommended, Reading(now, now, recommended), keep)
    highest = int(largest(readings, now, behavior.down_stabilization))
    inside = [one.value for one in readings if one.time >= now - behavior.up_stabilization]
    lowest = int(min(inside))
    stable = min(max(current, lowest), highest) if highest >= lowest else current
    changes = tuple(one for one in memory.changes if one[0] > now - max(behavior.up_period, behavior.down_period))
    if stable > current:
        added = sum(after - before for at, before, after in changes if after > before and at > now - behavior.up_period)
        base = current - added
        limit = max(base + behavior.up_pods, math.ceil(base * (1 + behavior.up_percent)))
        stable = max(current, min(stable, limit))
    elif stable < current:
        gone = sum(
            before - after for at, before, after in changes if after < before and at > now - behavior.down_period
        )
        limit = math.floor((current + gone) * (1 - behavior.down_percent))
        stable = min(current, max(stable, limit))
    if stable != current:
        changes = (*changes, (now, current, stable))
    return stable, Memory(readings, changes)


@dataclass(frozen=True)
class Hpa:
    """`target` is per pod: requests, or a share of time."""

    target: float
    metric: Metric = Metric.QUEUE
    behavior: Behavior = field(default_factory=Behavior)
    tolerance: float = 0.1
    period: float = 15.0
    removal: Removal = Removal.NEWEST
    name: str = "hpa"

    def start(self) -> Memory:
        return Memory()

    def decide(self, view: View, memory: Memory, bounds: Bounds) -> Decision:
        if view.desired == 0:
            return Decision(0, memory)  # an HPA is switched off at zero
        if not view.read:
            return Decision(view.desired, memory)  # without its metric an HPA changes nothing
        sums = view.sums
        current = view.desired
        match self.metric:
            case Metric.BUSY:
                # A resource metric distinguishes the pods that are not ready.
                replicas = desired(current, sums.busy / self.target, sums.ready, sums.starting, self.tolerance)
            case Metric.QUEUE | Metric.CONCURRENCY:
                replicas = average_value(current, metric(view, self.metric), self.target, self.tolerance)
        replicas = max(bounds.min, min(bounds.max, replicas))
        replicas, memory = behave(current, replicas, memory, view.now, self.behavior)
        return Decision(max(1, replicas), memory)


def average_value(current: int, total: float, target: float, tolerance: float = 0.1) -> int:
    """An external metric with AverageValue: total / target, unless total per present replica is within the tolerance
    (`GetExternalPerPodMetricReplicas`)."""
    if abs(total / (target * current) - 1.0) <= tolerance:
        return current
    return math.ceil(total / target - 1e-9)


def metric(view: View, which: Metric) -> float:
    """The metric over the whole fleet. Requests that the gateway holds count as waiting."""
    waiting = view.sums.waiting + view.held
    return waiting + view.sums.running if which is Metric.CONCURRENCY else waiting
