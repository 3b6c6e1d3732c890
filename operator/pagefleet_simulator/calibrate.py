"""Chooses a scaler's setting on one trace; the scaler is then measured on another.

The choice is the cheapest setting that meets the goal, or the setting that comes nearest to the goal. Every scaler but
ours gets this calibration; ours runs with the setting of its manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pagefleet_simulator.fleet.view import Scaler
from pagefleet_simulator.results.outcome import Objective, Outcome
from pagefleet_simulator.simulation import Setting, Simulation
from pagefleet_simulator.traces.synthetic import Trace

GOAL = 0.95  # share of requests that meet the objective


@dataclass(frozen=True)
class Tried:
    """A setting and its result."""

    scaler: Scaler
    attainment: float
    accelerator_hours: float


def best(tried: Iterable[Tried], goal: float = GOAL) -> Tried:
    """The cheapest setting that meets the goal. Raises ValueError when nothing was tried."""
    every = list(tried)
    good = [one for one in every if one.attainment >= goal]
    if good:
        return min(good, key=lambda one: one.accelerator_hours)
    return max(every, key=lambda one: (round(one.attainment, 3), -one.accelerator_hours))


def calibrate(
    candidates: Sequence[Scaler],
    trace: Trace,
    setting: Setting,
    objective: Objective,
    goal: float = GOAL,
    done: Callable[[], None] = lambda: None,
) -> Tried:
    """Try every candidate; a single candidate is chosen without a trial."""
    if len(candidates) == 1:
        return Tried(candidates[0], float("nan"), float("nan"))
    tried = []
    for scaler in candidates:
        outcome = Simulation(setting, scaler, trace.arrivals, trace.seconds).run()
        tried.append(_tried(scaler, outcome, objective))
        done()
    return best(tried, goal)


def _tried(scaler: Scaler, outcome: Outcome, objective: Objective) -> Tried:
    return Tried(scaler, outcome.attainment(objective), outcome.accelerator_hours)
