"""Chooses a scaler's setting on a trace that is not the one it is then measured on.

The cheapest setting that meets the goal; if none does, the one that comes nearest. Every scaler but ours is given this
(ours runs with what its manifest says).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pagefleet_simulator.fleet.request import Arrival
from pagefleet_simulator.fleet.view import Scaler
from pagefleet_simulator.results.outcome import Objective, Outcome
from pagefleet_simulator.simulation import Setting, Simulation

GOAL = 0.95  # share of requests that meet the objective


@dataclass(frozen=True)
class Tried:
    scaler: Scaler
    attainment: float
    accelerator_hours: float


def best(tried: Iterable[Tried], goal: float = GOAL) -> Tried:
    """Raises ValueError when nothing was tried."""
    every = list(tried)
    good = [one for one in every if one.attainment >= goal]
    if good:
        return min(good, key=lambda one: one.accelerator_hours)
    return max(every, key=lambda one: (round(one.attainment, 3), -one.accelerator_hours))


def calibrate(
    candidates: Sequence[Scaler],
    arrivals: Sequence[Arrival],
    seconds: float,
    setting: Setting,
    objective: Objective,
    goal: float = GOAL,
    done: Callable[[], None] = lambda: None,
) -> Tried:
    """One that has no other is taken without a trial."""
    if len(candidates) == 1:
        return Tried(candidates[0], float("nan"), float("nan"))
    tried = []
    for scaler in candidates:
        outcome = Simulation(setting, scaler, arrivals, seconds).run()
        tried.append(_tried(scaler, outcome, objective))
        done()
    return best(tried, goal)


def _tried(scaler: Scaler, outcome: Outcome, objective: Objective) -> Tried:
    return Tried(scaler, outcome.attainment(objective), outcome.accelerator_hours)
