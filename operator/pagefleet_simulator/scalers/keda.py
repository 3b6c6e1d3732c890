"""KEDA: a ScaledObject with a Prometheus trigger wakes a service from zero and puts it to sleep; an HPA does the rest.

Source: keda.sh "ScaledObject specification": pollingInterval 30 s (for 0 <-> 1 only; the HPA asks KEDA's metrics server
itself at its own 15 s), cooldownPeriod 300 s after the last trigger reported active, minReplicaCount 0,
activationThreshold 0; metricType AverageValue.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pagefleet_simulator.fleet.pods import Removal
from pagefleet_simulator.fleet.view import Bounds, Decision, View
from pagefleet_simulator.scalers import hpa
from pagefleet_simulator.scalers.hpa import Behavior, Metric


@dataclass(frozen=True)
class Memory:
    inner: hpa.Memory = field(default_factory=hpa.Memory)
    polled: float = -1e9
    active: float = 0.0  # when the trigger was last active


@dataclass(frozen=True)
class Keda:
    target: float
    metric: Metric = Metric.CONCURRENCY
    polling: float = 30.0
    cooldown: float = 300.0
    activation: float = 0.0
    behavior: Behavior = field(default_factory=Behavior)
    name: str = "keda"
    period: float = 15.0
    removal: Removal = Removal.NEWEST

    def start(self) -> Memory:
        return Memory()

    def decide(self, view: View, memory: Memory, bounds: Bounds) -> Decision:
        if not view.read:
            return Decision(view.desired, memory)
        total = hpa.metric(view, self.metric)
        polls = view.now - memory.polled >= self.polling
        # A running request makes the trigger active, also when the metric counts only waiting requests.
        active = total > self.activation or view.sums.running > 0
        polled = view.now if polls else memory.polled
        last_active = view.now if polls and active else memory.active
        if view.desired == 0:
            return Decision(max(1, bounds.min) if polls and active else 0, Memory(memory.inner, polled, last_active))
        if bounds.may_sleep and polls and not active and view.now - last_active >= self.cooldown:
            return Decision(0, Memory(hpa.Memory(), polled, last_active))
        recommended = hpa.average_value(view.desired, total, self.target)
        recommended = max(bounds.min, 1, min(bounds.max, recommended))
        replicas, inner = hpa.behave(view.desired, recommended, memory.inner, view.now, self.behavior)
        return Decision(replicas, Memory(inner, polled, last_active))
