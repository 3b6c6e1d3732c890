"""How a simulated service keeps the promises of `spec.slo`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pagefleet_contract.slo import ERRORS, Objective
from pagefleet_simulator.results.outcome import Ends


@dataclass(frozen=True)
class Kept:
    """`requests` counted for the objective, `missed` of them missed it."""

    objective: Objective
    requests: int
    missed: int

    @property
    def share(self) -> float | None:
        """The share of requests that kept it; None without a request."""
        return 1 - self.missed / self.requests if self.requests else None

    @property
    def promised(self) -> float:
        return 1 - self.objective.allowed

    @property
    def broken(self) -> bool:
        return self.missed > self.objective.allowed * self.requests


def kept(ends: Ends, objectives: Sequence[Objective]) -> tuple[Kept, ...]:
    """Count each objective over the whole trace. A request that was not served misses every latency; a refused one is an error."""
    return tuple(_kept(ends, one) for one in objectives)


def _kept(ends: Ends, objective: Objective) -> Kept:
    counts = ends.priority == objective.priority if objective.priority else np.ones(len(ends.ttft), dtype=bool)
    missed = ends.refused if objective.signal == ERRORS else getattr(ends, objective.signal) > objective.seconds
    return Kept(objective, int(counts.sum()), int((counts & missed).sum()))
