"""The view of a fleet that a scaler gets, and the protocol of scalers: the operator's function and other projects' rules.

A scaler is pure: it gets a view and its memory, and returns a number of replicas and its next memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from pagefleet_operator.domain.status.engine_load import NO_LOAD, EngineLoad
from pagefleet_simulator.fleet.pods import Removal


@dataclass(frozen=True)
class Bounds:
    """Replicas. A service that `sleeps` scales to zero when it is idle, whatever its `min` is; with `min` 0 it does so as well."""

    min: int
    max: int
    sleeps: bool = False

    @property
    def may_sleep(self) -> bool:
        return self.sleeps or self.min == 0

    def within(self, replicas: int) -> int:
        """The number within the bounds; 0 stays 0 where the service may sleep."""
        return 0 if replicas == 0 and self.may_sleep else max(self.min, min(self.max, replicas))


@dataclass(frozen=True)
class PodView:
    """One pod that is not gone.

    Rates, means and `busy` (the share of time with work) are since the scaler's last decision. `itl` and `ttft` are None
    when there was no step, or no first token, in that time.
    """

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
    """The sums over the pods that are ready and not draining, and the numbers of other pods."""

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
    """The fleet at `now`, in seconds since the trace began.

    `desired` is the last decision. `concurrency` is the mean number of requests in the fleet, held ones included, since
    the last decision at `since`. `arrivals` are requests per second in steps of 10 s, oldest first; the last step ended
    at `arrivals_end`. `ttft` is the 95th percentile of the last minute. `startups` are (time at which a pod became ready,
    seconds since its creation) of the pods that became ready since the last decision. While the engines are not `read`, `sums`
    and `pods` hold no load; what gateways count is there.
    """

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
    read: bool = True

    @cached_property
    def pods(self) -> tuple[PodView, ...]:
        """The pods one by one. They are made only when a scaler uses them, because a large fleet has many."""
        return self.look()


@dataclass(frozen=True)
class Decision:
    replicas: int
    memory: Any
    message: str = ""


class Scaler(Protocol):
    """`period` is the time between two decisions in seconds; `removal` is the order in which pods are deleted."""

    @property
    def name(self) -> str: ...
    @property
    def period(self) -> float: ...
    @property
    def removal(self) -> Removal: ...
    def start(self) -> Any: ...
    def decide(self, view: View, memory: Any, bounds: Bounds) -> Decision: ...
