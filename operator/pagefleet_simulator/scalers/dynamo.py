"""NVIDIA Dynamo's planner, load-based rules for engines that prefill and decode (mode agg, optimization_target sla).

Sources: ai-dynamo/dynamo docs/pages/design-docs/planner-design.md ("Load-Based Scaling") and the planner guide:
load_adjustment_interval 5 s, TTFT 500 ms, ITL 50 ms, load_scaling_down_sensitivity 80, load_min_observations 5, a
sliding window of samples (load_learning_window 50). Regressions of each engine's load on its latency, time-averaged:
(queued prefill tokens + mean prompt) -> TTFT, KV in use -> ITL. Up by one when every engine's load exceeds what the
TTFT or what the ITL target allows; down by one when every engine's load is below (n-1)/n x sensitivity of both; one at a
time, waiting until a change is in force. Throughput-based scaling is not supported in this mode.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagefleet_simulator.fleet.pods import Removal
from pagefleet_simulator.fleet.view import Bounds, Decision, PodView, View

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Sla:
    ttft: float = 0.5
    itl: float = 0.05
    sensitivity: float = 0.8
    observations: int = 5
    window: int = 50


@dataclass(frozen=True)
class Memory:
    ttft: Points = ()
    itl: Points = ()


def limit(points: Points, target: float, least: int) -> float | None:
    """The load at which a line through the points reaches `target`; None for too few points or a line that does not rise."""
    if len(points) < least:
        return None
    x = sum(load for load, _ in points) / len(points)
    y = sum(seconds for _, seconds in points) / len(points)
    spread = sum((load - x) ** 2 for load, _ in points)
    if spread <= 0:
        return None
    slope = sum((load - x) * (seconds - y) for load, seconds in points) / spread
    if slope <= 0:
        return None
    return max(0.0, x + (target - y) / slope)


def change(loads: list[tuple[float, float]], most: tuple[float | None, float | None], sensitivity: float) -> int:
    """The change of the replica count: +1, 0 or -1.

    `loads` are (prefill tokens, KV pages) of each engine; `most` are the limits of both that the targets allow.
    """
    known = [which for which in (0, 1) if most[which] is not None]
    if not loads or not known:
        return 0
    bounds = [most[which] or 0.0 for which in (0, 1)]
    if any(all(load[which] > bounds[which] for load in loads) for which in known):
        return 1
    if len(loads) < 2 or len(known) < 2:
        return 0
    share = (len(loads) - 1) / len(loads) * sensitivity
    return -1 if all(load[which] < bounds[which] * share for load in loads for which in known) else 0


@dataclass(frozen=True)
class Dynamo:
    sla: Sla = Sla()
    name: str = "dynamo"
    period: float = 5.0
    removal: Removal = Removal.NEWEST

    def start(self) -> Memory:
        return Memory()

    def decide(self, view: View, memory: Memory, bounds: Bounds) -> Decision:
        if not view.read:
            return Decision(view.desired, memory)
        ready = [pod for pod in view.pods if pod.ready]
        window = self.sla.window
        ttft = (*memory.ttft, *((_prefill(pod), pod.ttft) for pod in ready if pod.ttft is not None))[-window:]
        itl = (*memory.itl, *((float(pod.load.kv_pages_used), pod.itl) for pod in ready if pod.itl is not None))[
            -window:
        ]
        memory = Memory(ttft, itl)
        if not ready and view.held and not view.sums.starting:
            return Decision(max(1, view.desired), memory)
        if view.sums.starting or view.sums.ready != view.desired:
            return Decision(view.desired, memory)
        least = self.sla.observations
        most = limit(ttft, self.sla.ttft, least), limit(itl, self.sla.itl, least)
        step = change([(_prefill(pod), float(pod.load.kv_pages_used)) for pod in ready], most, self.sla.sensitivity)
        return Decision(max(bounds.min, min(bounds.max, view.desired + step)), memory)


def _prefill(pod: PodView) -> float:
    return float((pod.load.waiting_tokens or 0) + pod.prefill_left)
