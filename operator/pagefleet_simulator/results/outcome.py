"""The outcome of a simulated run: attainment, accelerator-hours, cost, scale events, flaps. Sums only."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FLAP_SECONDS = 600.0


@dataclass(frozen=True)
class Objective:
    """The objective for a request.

    A request meets it when it was served, its first token came within `ttft` seconds, and its further tokens took at most
    `tpot` seconds each in the mean.
    """

    ttft: float = 2.0
    tpot: float = 0.1


@dataclass(frozen=True)
class ScaleEvent:
    time: float
    before: int
    after: int


@dataclass(frozen=True)
class Moment:
    """A point of the timeline."""

    time: float
    ready: int
    starting: int
    desired: int
    queue: float  # waiting in engines and held
    running: float


@dataclass(frozen=True)
class Latencies:
    """One number for each served request (mode "requests") or for each cohort with its weight (mode "fluid")."""

    ttft: Floats
    tpot: Floats
    weight: Floats

    def met(self, objective: Objective) -> float:
        good = (self.ttft <= objective.ttft) & (self.tpot <= objective.tpot)
        return float(self.weight[good].sum())

    def quantile(self, values: Floats, share: float) -> float | None:
        total = float(self.weight.sum())
        if total == 0:
            return None
        order = np.argsort(values, kind="stable")
        reached = np.cumsum(self.weight[order])
        return float(values[order][min(len(order) - 1, int(np.searchsorted(reached, share * total)))])


@dataclass(frozen=True)
class Ends:
    """How each request of the trace ended, in their order: its class, its times in seconds (inf where it was not served), and
    whether it was `refused`. Requests in flight at the end are not refused."""

    priority: NDArray[np.str_]
    ttft: Floats
    tpot: Floats
    e2e: Floats
    refused: NDArray[np.bool_]


@dataclass(frozen=True)
class Outcome:
    """`mode` is "requests" or "fluid". `accelerator_seconds` are billed from binding to the end of draining."""

    scaler: str
    mode: str
    seconds: float
    requests: float
    served: float
    dropped: float
    left: float
    tokens: float
    preemptions: float
    accelerator_seconds: float
    latencies: Latencies
    ends: Ends | None = None  # None in mode "fluid"
    events: tuple[ScaleEvent, ...] = ()
    timeline: tuple[Moment, ...] = field(default=(), repr=False)

    @property
    def accelerator_hours(self) -> float:
        return self.accelerator_seconds / 3600

    def attainment(self, objective: Objective) -> float:
        """Share of all requests, the refused and the unfinished ones too."""
        return self.latencies.met(objective) / self.requests if self.requests else 1.0

    def cost_per_1k_tokens(self, per_hour: float) -> float | None:
        return per_hour * self.accelerator_hours / (self.tokens / 1000) if self.tokens else None

    @property
    def flaps(self) -> int:
        return flaps(self.events)

    @property
    def mean_replicas(self) -> float:
        return float(np.mean([moment.ready for moment in self.timeline])) if self.timeline else 0.0


def flaps(events: Sequence[ScaleEvent], within: float = FLAP_SECONDS) -> int:
    """Count the changes that take the change before back: in the other direction, within `within` seconds."""
    return sum(
        1
        for before, after in itertools.pairwise(events)
        if (before.after - before.before) * (after.after - after.before) < 0 and after.time - before.time <= within
    )
