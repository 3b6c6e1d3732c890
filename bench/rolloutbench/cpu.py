"""The operator's processor time for the decisions of many services with canaries, and the size of a status.

One service after the other is decided about, as often as in a cluster. The time of one is measured and multiplied: a decision
shares nothing with another service's. It includes the shipped reader of the gateways' documents (`GatewayWindows`), `decide()`,
and the status to JSON and back, not the requests to the API server and the sockets.
"""

from __future__ import annotations

import gc
import json
import time
from dataclasses import dataclass

from bench.rolloutbench.scenario import Scenario
from bench.rolloutbench.world import World

from pagefleet_operator import collector
from pagefleet_operator.domain.status import budget

SERVICES, MAX_CORES = 1000, 1.0
ROLLOUT_SECONDS = 600.0  # of the default steps: what was before it is read once in so long
SCENARIO = Scenario(name="cpu", gateways=2, history=3600.0)


@dataclass(frozen=True)
class Cost:
    """Seconds of processor time by decision, decisions a second, and the largest status in bytes.

    `first_seconds` is the time of a rollout's first reading and the decision on it: of the load-adjusted times before the
    rollout. It is in none of the others.
    """

    decision_seconds: float
    longest_seconds: float
    first_seconds: float
    per_second: float
    status_bytes: int

    @property
    def cores(self) -> float:
        """Cores for SERVICES services."""
        return (self.decision_seconds * self.per_second + self.first_seconds / ROLLOUT_SECONDS) * SERVICES


def measure(seconds: float) -> Cost:
    """Play one service's rollout for so many seconds of its time after the history, and measure its decisions."""
    world = World(SCENARIO, 1)
    world.full_pace = True
    operator, times, first, largest = world.operator, list[float](), 0.0, 0
    operator.stored_every = 1
    for _ in world.steps(until=SCENARIO.history):
        pass
    operator.windows.read(judged=False)  # as the watch of the stable revision has read so far
    thresholds = gc.get_threshold()
    collector.search_less()  # and what the gateways and engines have is no operator's
    decide = operator.decide

    def timed(engines: object) -> object:
        nonlocal first, largest
        begins = bool(operator.status.canary) and not first  # it reads what was before the rollout
        began, gateways = time.process_time(), operator.windows.gateway_seconds
        plan = decide(engines)  # type: ignore[arg-type]
        own = time.process_time() - began - (operator.windows.gateway_seconds - gateways)
        if begins:
            first = own
        else:
            times.append(own)
        largest = max(largest, len(json.dumps(plan.document)))
        return plan

    operator.decide = timed  # type: ignore[assignment, method-assign]
    world.run(until=SCENARIO.history + seconds)
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    return Cost(sum(times) / len(times), max(times), first, len(times) / seconds, largest)


def status_budget() -> int:
    """Return the most bytes that a status may have."""
    return budget.MAX_BYTES
