"""Knative's pod autoscaler (KPA): concurrency over a stable and a panic window.

Sources: knative.dev "Additional autoscaling configuration for Knative Pod Autoscaler", config-autoscaler and
knative/serving pkg/autoscaler/scaling/autoscaler.go: tick 2 s, stable window 60 s, panic window 10 % of it, panic when
the panic window wants at least twice the ready pods, rates 1000 up and 2 down, target 70 % of the concurrency limit;
never down in a panic, which lasts a stable window after its last cause.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagefleet_simulator.fleet.pods import Removal
from pagefleet_simulator.fleet.view import Bounds, Decision, View
from pagefleet_simulator.scalers.windows import Reading, Readings, add, mean


@dataclass(frozen=True)
class Memory:
    concurrency: Readings = ()
    panic_since: float | None = None
    panic_pods: int = 0
    idle_since: float | None = None


@dataclass(frozen=True)
class Rules:
    stable: float = 60.0
    panic: float = 6.0
    threshold: float = 2.0
    up_rate: float = 1000.0
    down_rate: float = 2.0
    utilization: float = 0.7
    grace: float = 30.0  # scale-to-zero-grace-period


def pods_for(concurrency: float, target: float) -> int:
    """The pods that hold the concurrency at `target` per pod."""
    return math.ceil(concurrency / target - 1e-9)


def scale(stable: int, panic: int, ready: int, memory: Memory, now: float, rules: Rules) -> tuple[int, Memory]:
    """The replicas. `stable` and `panic` are the pods for the mean concurrencies of the two windows."""
    pods = max(1, ready)
    most, least = math.ceil(rules.up_rate * pods), math.floor(pods / rules.down_rate)
    over = panic / pods >= rules.threshold
    since = memory.panic_since
    if over:
        since = now
    elif since is not None and now - since > rules.stable:
        since = None
    replicas = min(max(stable, least), most)
    if since is None:
        return replicas, Memory(memory.concurrency, None, 0, memory.idle_since)
    highest = max(memory.panic_pods, replicas, min(max(panic, least), most))
    return highest, Memory(memory.concurrency, since, highest, memory.idle_since)


@dataclass(frozen=True)
class Kpa:
    """`concurrency` is the container's limit; 70 % of it is the target."""

    concurrency: float
    rules: Rules = Rules()
    name: str = "kpa"
    period: float = 2.0
    removal: Removal = Removal.NEWEST

    def start(self) -> Memory:
        return Memory()

    def decide(self, view: View, memory: Memory, bounds: Bounds) -> Decision:
        readings = add(memory.concurrency, Reading(view.since, view.now, view.concurrency), self.rules.stable)
        memory = Memory(readings, memory.panic_since, memory.panic_pods, memory.idle_since)
        target = self.concurrency * self.rules.utilization
        stable = pods_for(mean(readings, view.now, self.rules.stable), target)
        panic = pods_for(mean(readings, view.now, self.rules.panic), target)
        replicas, memory = scale(stable, panic, view.sums.ready, memory, view.now, self.rules)
        if replicas == 0 and bounds.may_sleep:
            since = view.now if memory.idle_since is None else memory.idle_since
            memory = Memory(memory.concurrency, memory.panic_since, memory.panic_pods, since)
            replicas = 0 if view.now - since >= self.rules.grace else 1
        else:
            memory = Memory(memory.concurrency, memory.panic_since, memory.panic_pods, None)
        return Decision(bounds.within(replicas), memory)
