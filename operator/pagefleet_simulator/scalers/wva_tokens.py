"""llm-d's workload-variant-autoscaler, token-based rules (V2, the default from v0.9.0 on) for one variant.

Sources: llm-d-workload-variant-autoscaler internal/engines/analyzers/saturation_v2 and docs/developer-guide/saturation-scaling-config.md:
demand of a replica: KV tokens in use and the tokens that wait, peaks of one minute; its capacity: the smaller of kvCacheThreshold (0.80)
of its KV tokens and the tokens that were in use when its queue had reached queueLengthThreshold (5), averaged over the last ten such looks;
up by what demand / scaleUpThreshold (0.85) exceeds the ready and starting replicas' capacity; down by what the ready ones' capacity exceeds
demand / scaleDownBoundary (0.70). A loop of 30 s; an HPA without stabilisation puts it into force. Capacities that WVA derives from an
engine's arguments before any queue was seen are not here: then the KV tokens alone count, as where it cannot derive one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median

from pagefleet_simulator.fleet.pods import Removal
from pagefleet_simulator.fleet.view import Bounds, Decision, PodView, View
from pagefleet_simulator.scalers.windows import Reading, Readings, add, largest

PEAK_SECONDS = 60.0
OBSERVED = 10


@dataclass(frozen=True)
class Limits:
    kv: float = 0.80
    queue: int = 5
    up: float = 0.85
    down: float = 0.70


@dataclass(frozen=True)
class Memory:
    """`peaks` are the demands of each pod, in KV pages; `observed` the pages in use of replicas with a full queue."""

    peaks: tuple[tuple[str, Readings], ...] = ()
    observed: tuple[float, ...] = ()
    decided: float = -1e9
    target: int | None = None


def change(demand: float, capacity: float, ready: int, starting: int, limits: Limits) -> int:
    """Replicas to add (positive) or to remove."""
    required = demand / limits.up - (ready + starting) * capacity
    if required > 0:
        return math.ceil(required / capacity)
    spare = ready * capacity - demand / limits.down
    return -min(ready - 1, math.floor(spare / capacity)) if spare > 0 and not starting else 0


@dataclass(frozen=True)
class WvaTokens:
    page_size: int
    limits: Limits = Limits()
    interval: float = 30.0
    name: str = "wva-tokens"
    period: float = 15.0
    removal: Removal = Removal.IDLEST

    def start(self) -> Memory:
        return Memory()

    def decide(self, view: View, memory: Memory, bounds: Bounds) -> Decision:
        ready = [pod for pod in view.pods if pod.ready]
        if not view.read or not ready:
            target = 1 if view.held and not view.sums.starting else view.desired
            return Decision(max(bounds.min, view.desired, target), memory)
        known, peaks = dict(memory.peaks), list[tuple[str, Readings]]()
        for pod in ready:
            demand = pod.load.kv_pages_used + (pod.load.waiting_tokens or 0) / self.page_size
            peaks.append((pod.name, add(known.get(pod.name, ()), Reading(view.now, view.now, demand), PEAK_SECONDS)))
        memory = replace(memory, peaks=tuple(peaks))
        if view.now - memory.decided < self.interval:
            return Decision(view.desired if memory.target is None else memory.target, memory)
        full = [float(pod.load.kv_pages_used) for pod in ready if pod.load.waiting >= self.limits.queue]
        memory = replace(memory, observed=(*memory.observed, *full)[-OBSERVED:], decided=view.now)
        capacity = median(self._capacity(pod, memory.observed) for pod in ready)
        asked = sum(largest(readings, view.now, PEAK_SECONDS) for _, readings in peaks)
        asked += view.held * (asked / max(1.0, view.sums.running))
        step = change(asked, capacity, len(ready), view.sums.starting, self.limits)
        target = max(bounds.min, 1, min(bounds.max, len(ready) + view.sums.starting + step))
        return Decision(target, replace(memory, target=target))

    def _capacity(self, pod: PodView, observed: tuple[float, ...]) -> float:
        memory_bound = self.limits.kv * (pod.load.kv_pages_total or 1)
        if pod.load.waiting >= self.limits.queue and pod.load.kv_pages_used:
            return min(memory_bound, float(pod.load.kv_pages_used))
        return min(memory_bound, sum(observed) / len(observed)) if observed else memory_bound
