"""llm-d's workload-variant-autoscaler, saturation rules for one variant, put into force by an HPA.

These are the percentage-based rules (V1), the default up to v0.8. The token-based ones (V2), the default from v0.9.0 on, are not here.

Sources: workload-variant-autoscaler docs/saturation-analyzer.md and docs/saturation-scaling-config.md
(kvCacheThreshold 0.80, queueLengthThreshold 5, kvSpareTrigger 0.1, queueSpareTrigger 3; peaks of one minute per
replica; one more than the ready replicas when mean spare of those not saturated is short, none while replicas are
pending; one fewer when the load of all, spread over one fewer, still leaves both spares), optimisation interval 60 s;
config/samples/hpa-integration.yaml (no stabilisation, 10 pods per 15 s).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagefleet_simulator.fleet.pods import Removal
from pagefleet_simulator.fleet.view import Bounds, Decision, View
from pagefleet_simulator.scalers.windows import Reading, Readings, add, largest

PEAK_SECONDS = 60.0


@dataclass(frozen=True)
class Thresholds:
    kv: float = 0.80
    queue: float = 5.0
    spare_kv: float = 0.10
    spare_queue: float = 3.0


@dataclass(frozen=True)
class Replica:
    """Peaks of the last minute: share of KV in use, requests waiting."""

    kv: float
    queue: float


@dataclass(frozen=True)
class Memory:
    kv: tuple[tuple[str, Readings], ...] = ()
    queue: tuple[tuple[str, Readings], ...] = ()
    decided: float = -1e9
    target: int | None = None


def saturation(replicas: Sequence[Replica], pending: int, rules: Thresholds) -> int:
    """Change of replicas: +1, 0 or -1."""
    free = [one for one in replicas if one.kv < rules.kv and one.queue < rules.queue]
    if not replicas:
        return 0
    if not free:
        return 0 if pending else 1
    spare_kv = sum(rules.kv - one.kv for one in free) / len(free)
    spare_queue = sum(rules.queue - one.queue for one in free) / len(free)
    if spare_kv < rules.spare_kv or spare_queue < rules.spare_queue:
        return 0 if pending else 1
    if len(free) < 2 or pending:
        return 0
    kv = sum(one.kv for one in free) / (len(free) - 1)
    queue = sum(one.queue for one in free) / (len(free) - 1)
    return -1 if rules.kv - kv >= rules.spare_kv and rules.queue - queue >= rules.spare_queue else 0


@dataclass(frozen=True)
class Wva:
    thresholds: Thresholds = Thresholds()
    interval: float = 60.0
    name: str = "wva"
    period: float = 15.0
    removal: Removal = Removal.NEWEST

    def start(self) -> Memory:
        return Memory()

    def decide(self, view: View, memory: Memory, bounds: Bounds) -> Decision:
        if not view.read:
            return Decision(view.desired, memory)
        ready = [pod for pod in view.pods if pod.ready]
        kv, queue = dict(memory.kv), dict(memory.queue)
        all_kv, all_queue, replicas = [], [], []
        for pod in ready:
            used = pod.load.kv_pages_used / (pod.load.kv_pages_total or 1)
            mine = add(kv.get(pod.name, ()), Reading(view.now, view.now, used), PEAK_SECONDS)
            line = add(queue.get(pod.name, ()), Reading(view.now, view.now, pod.load.waiting), PEAK_SECONDS)
            all_kv.append((pod.name, mine))
            all_queue.append((pod.name, line))
            replicas.append(Replica(largest(mine, view.now, PEAK_SECONDS), largest(line, view.now, PEAK_SECONDS)))
        decided, target = memory.decided, memory.target
        if view.now - decided >= self.interval:
            decided = view.now
            change = saturation(replicas, view.sums.starting, self.thresholds)
            # A target that is not reached yet stays (desired is not current).
            target = view.desired if view.sums.starting else max(1, len(ready)) + change
            if not ready and view.held and not view.sums.starting:
                target = 1
        replicas_now = view.desired if target is None else max(bounds.min, min(bounds.max, target))
        return Decision(replicas_now, Memory(tuple(all_kv), tuple(all_queue), decided, target))
