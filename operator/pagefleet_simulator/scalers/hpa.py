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

from pagefleet_simulator.fleet.pods import Victim
from pagefleet_simulator.fleet.view import Bounds, Decision, View
from pagefleet_simulator.scalers.windows import Reading, Readings, add, largest


class Metric(StrEnum):
    """What is held at the target: requests waiting in engines per pod (num_requests_waiting), requests running and
    waiting per pod, or the share of time a pod computes (what a GPU's utilization counter shows)."""

    QUEUE = "queue"
    CONCURRENCY = "concurrency"
    BUSY = "busy"


@dataclass(frozen=True)
class Behavior:
    """Of `spec.behavior`; a direction takes the policy that allows most (selectPolicy Max)."""

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
    """ceil(ready x ratio) of the metric over its target, unless within the tolerance; pods that are not ready count as
    using nothing when there is to be more (`replica_calculator.go`), and the result must not change direction by
    that."""
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


def behave(current: int, wanted: int, memory: Memory, now: float, behavior: Behavior) -> tuple[int, Memory]:
    """Stabilise a recommendation, then limit its rate."""
    keep = max(behavior.up_stabilization, behavior.down_stabilization)
    recommended = add(memory.recommended, Reading(now, now, wanted), keep)
    highest = int(largest(recommended, now, behavior.down_stabilization))
    inside = [one.value for one in recommended if one.time >= now - behavior.up_stabilization]
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
    return stable, Memory(recommended, changes)


@dataclass(frozen=True)
class Hpa:
    """`target` is per pod: requests, or a share of time."""

    target: float
    metric: Metric = Metric.QUEUE
    behavior: Behavior = field(default_factory=Behavior)
    tolerance: float = 0.1
    period: float = 15.0
    victim: Victim = Victim.NEWEST
    name: str = "hpa"

    def start(self) -> Memory:
        return Memory()

    def decide(self, view: View, memory: Memory, bounds: Bounds) -> Decision:
        if view.desired == 0:
            return Decision(0, memory)  # an HPA is switched off at zero
        sums = view.sums
        current = view.desired
        match self.metric:
            case Metric.BUSY:
                # A resource metric: pods that are not ready are told apart.
                wanted = desired(current, sums.busy / self.target, sums.ready, sums.starting, self.tolerance)
            case Metric.QUEUE | Metric.CONCURRENCY:
                wanted = average_value(current, metric(view, self.metric), self.target, self.tolerance)
        wanted = max(bounds.min, min(bounds.max, wanted))
        replicas, kept = behave(current, wanted, memory, view.now, self.behavior)
        return Decision(max(1, replicas), kept)


def average_value(current: int, total: float, target: float, tolerance: float = 0.1) -> int:
    """An external metric with AverageValue: total / target, unless total per present replica is within the tolerance
    (`GetExternalPerPodMetricReplicas`)."""
    if abs(total / (target * current) - 1.0) <= tolerance:
        return current
    return math.ceil(total / target - 1e-9)


def metric(view: View, which: Metric) -> float:
    """Over the fleet. What the gateway holds waits too."""
    waiting = view.sums.waiting + view.held
    return waiting + view.sums.running if which is Metric.CONCURRENCY else waiting
