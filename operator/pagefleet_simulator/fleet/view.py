"""What a scaler may look at, and what it is: one protocol for the operator's function and for other projects' rules.

Data only. A scaler is pure: it gets a view and its memory, and returns how many replicas and the memory to keep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from pagefleet_operator.domain.status.engine_load import NO_LOAD, EngineLoad
from pagefleet_simulator.fleet.pods import Victim


@dataclass(frozen=True)
class Bounds:
    """Replicas. With `min` 0 a service scales to zero."""

    min: int
    max: int


@dataclass(frozen=True)
class PodView:
    """One pod that is not gone. Rates, means and `busy` (share of time with work) are since the scaler's last look;
    `itl` and `ttft` are None when there was no step, or no first token, in that time."""

    name: str
    ready: bool
    draining: bool
    created: float
    ready_since: float | None
    stuck: bool = False  # no accelerator is free
    load: EngineLoad = NO_LOAD
    prefill_left: int = 0  # prompt tokens of running sequences that are still to be computed
    busy: float = 0.0
    itl: float | None = None  # mean seconds of a step
    ttft: float | None = None  # mean seconds


@dataclass(frozen=True)
class Sums:
    """The pods that are ready and not draining, summed up, and how many others there are."""

    ready: int
    starting: int
    stuck: int
    running: float
    waiting: float
    unqueued: int  # pods where nothing waits
    waiting_tokens: float
    kv_pages_used: float
    kv_pages_total: float
    busy: float  # mean share
    preemptions: float  # per second
    tokens: float  # generated per second


@dataclass(frozen=True)
class View:
    """`now` is seconds since the trace began. `desired` is what was last decided, `concurrency` the mean number of
    requests in the fleet (held ones too) since the last look, `arrivals` requests per second in steps of 10 s, oldest
    first, the last of which ended at `arrivals_end`; `ttft` the 95th percentile of the last minute. `startups`: (when it became ready, seconds from created) of the
    pods that became ready since the last look."""

    now: float
    since: float
    desired: int
    sums: Sums
    held: int
    concurrency: float
    arrivals: tuple[float, ...]
    arrivals_end: float
    ttft: float | None
    startups: tuple[tuple[float, float], ...]
    slots: int  # sequences that a replica runs at once
    look: Callable[[], tuple[PodView, ...]]

    @cached_property
    def pods(self) -> tuple[PodView, ...]:
        """One by one: dear in a large fleet, so only made for those who ask."""
        return self.look()


@dataclass(frozen=True)
class Decision:
    replicas: int
    memory: Any
    message: str = ""


class Scaler(Protocol):
    """`period` is seconds between two looks; `victim` who goes first when there are too many."""

    @property
    def name(self) -> str: ...
    @property
    def period(self) -> float: ...
    @property
    def victim(self) -> Victim: ...
    def start(self) -> Any: ...
    def decide(self, view: View, memory: Any, bounds: Bounds) -> Decision: ...
