"""Rules that divide the rate of arrivals by what a replica carries: WVA's queueing engine, Dynamo's target sla, TokenScale.

Sources: llm-d-workload-variant-autoscaler docs/developer-guide/slo-queuemodel.md (capacity: the highest rate within TTFT and ITL
targets, a loop of 30 s, put into force by an HPA without stabilisation); ai-dynamo/dynamo planner core/throughput_scaling.py and
config/defaults.py (throughput_adjustment_interval 180 s, ceil of the predicted rate over the engine's rate, as a floor under the
load-based rule of every 5 s; predictors constant, arima, kalman, prophet); TokenScale, arXiv:2512.03416 (token arrivals over token
velocities, and decoders that also compute prompts as a buffer for bursts).

What a replica carries (`each`, requests per second) they learn or profile; here it is exact for the trace's mean lengths
(`fleet/queueing.py`), which favours them. Dynamo's statistical predictors are represented by a line through the last intervals.
TokenScale is made for separate prefill and decode engines; here every engine does both, and the buffer is a number of replicas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pagefleet_simulator.fleet.pods import Removal
from pagefleet_simulator.fleet.view import Bounds, Decision, View
from pagefleet_simulator.scalers.dynamo import Dynamo, Sla
from pagefleet_simulator.scalers.dynamo import Memory as LoadMemory
from pagefleet_simulator.scalers.windows import Reading, Readings, add, largest

STEP = 10.0  # of View.arrivals
LINE = 5  # intervals that a prediction looks at


def rate(view: View, seconds: float) -> float:
    """Requests per second in the mean of the last `seconds`."""
    last = view.arrivals[-max(1, round(seconds / STEP)) :]
    return sum(last) / len(last) if last else 0.0


def within(bounds: Bounds, replicas: float) -> int:
    return max(bounds.min, min(bounds.max, math.ceil(replicas - 1e-9)))


@dataclass(frozen=True)
class Timed:
    """The time of the last decision and what it was."""

    at: float = -1e9
    replicas: int | None = None


@dataclass(frozen=True)
class WvaQueueing:
    each: float
    name: str = "wva-queueing"
    interval: float = 30.0
    period: float = 15.0
    removal: Removal = Removal.IDLEST

    def start(self) -> Timed:
        return Timed()

    def decide(self, view: View, memory: Timed, bounds: Bounds) -> Decision:
        if view.now - memory.at >= self.interval and view.arrivals:
            memory = Timed(view.now, within(bounds, max(1.0, rate(view, 60.0) / self.each)))
        return Decision(view.desired if memory.replicas is None else memory.replicas, memory)


@dataclass(frozen=True)
class SlaMemory:
    load: LoadMemory = field(default_factory=LoadMemory)
    at: float = 0.0
    floor: int = 1


@dataclass(frozen=True)
class DynamoSla:
    """`line`: predict by a line through the last intervals instead of the last one. `load`: run the load-based rule above the floor."""

    each: float
    sla: Sla = field(default_factory=Sla)
    line: bool = False
    load: bool = True
    name: str = "dynamo-sla"
    interval: float = 180.0
    period: float = 5.0
    removal: Removal = Removal.IDLEST

    def start(self) -> SlaMemory:
        return SlaMemory()

    def decide(self, view: View, memory: SlaMemory, bounds: Bounds) -> Decision:
        at, floor = memory.at, memory.floor
        if view.now - at >= self.interval:
            at, floor = view.now, within(bounds, self.predicted(view) / self.each)
        inner = Dynamo(self.sla).decide(view, memory.load, bounds)
        replicas = max(floor, inner.replicas) if self.load else floor
        return Decision(within(bounds, replicas), SlaMemory(inner.memory, at, floor))

    def predicted(self, view: View) -> float:
        """Requests per second of the next interval."""
        steps = round(self.interval / STEP)
        newest = rate(view, self.interval)
        starts = range(len(view.arrivals) - steps, -1, -steps)
        past = [sum(view.arrivals[start : start + steps]) / steps for start in starts][:LINE][::-1]
        if not self.line or len(past) < 3:
            return newest
        middle, mean = (len(past) - 1) / 2, sum(past) / len(past)
        slope = sum((i - middle) * (one - mean) for i, one in enumerate(past)) / sum(
            (i - middle) ** 2 for i in range(len(past))
        )
        return max(0.0, mean + slope * (len(past) - middle))


@dataclass(frozen=True)
class TokenScale:
    """`convertible` replicas stand by for bursts. A decrease goes to the highest number of the last `keep` seconds."""

    each: float
    convertible: int = 1
    keep: float = 60.0
    name: str = "tokenscale"
    period: float = 5.0
    removal: Removal = Removal.IDLEST

    def start(self) -> Readings:
        return ()

    def decide(self, view: View, memory: Readings, bounds: Bounds) -> Decision:
        if not view.arrivals:
            return Decision(view.desired, memory)
        wanted = within(bounds, rate(view, STEP) / self.each + self.convertible)
        memory = add(memory, Reading(view.now, view.now, wanted), self.keep)
        return Decision(int(largest(memory, view.now, self.keep)), memory)
