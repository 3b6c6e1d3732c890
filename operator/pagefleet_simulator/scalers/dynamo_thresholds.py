"""NVIDIA Dynamo's planner, targets throughput (its default), latency and load, engines that prefill and decode (mode agg).

Sources: ai-dynamo/dynamo components/src/dynamo/planner/core/load_scaling.py (`_agg_easy_decision`) and the planner guide: every 5 s, each
engine's use of its KV cache, queued prompts included; one more when any engine is above the upper threshold, one fewer when all are below
the lower one; nothing while a change is not in force. Throughput: 100 % and 60 %. Latency: 40 % and 10 %. Load: the user's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagefleet_simulator.fleet.pods import Removal
from pagefleet_simulator.fleet.view import Bounds, Decision, PodView, View


@dataclass(frozen=True)
class Target:
    name: str
    up: float
    down: float


THROUGHPUT, LATENCY = Target("throughput", 1.0, 0.6), Target("latency", 0.4, 0.1)


def change(uses: list[float], target: Target) -> int:
    """+1, 0 or -1. `uses` are the engines' shares of KV."""
    if any(use > target.up for use in uses):
        return 1
    return -1 if len(uses) > 1 and all(use < target.down for use in uses) else 0


@dataclass(frozen=True)
class DynamoThresholds:
    page_size: int
    target: Target = THROUGHPUT
    name: str = "dynamo-thresholds"
    period: float = 5.0
    removal: Removal = Removal.IDLEST

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None, bounds: Bounds) -> Decision:
        if not view.sums.ready and view.held and not view.sums.starting:
            return Decision(max(1, view.desired), None)
        if not view.read or view.sums.starting or view.sums.ready != view.desired:
            return Decision(view.desired, None)
        step = change([self._use(pod) for pod in view.pods if pod.ready], self.target)
        return Decision(max(bounds.min, min(bounds.max, view.desired + step)), None)

    def _use(self, pod: PodView) -> float:
        pages = pod.load.kv_pages_used + (pod.load.waiting_tokens or 0) / self.page_size
        return pages / (pod.load.kv_pages_total or 1)
