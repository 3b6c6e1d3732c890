"""Measurements summed up: a revision's pods at one time, a service's arrivals, and its kept and missed objectives. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pagefleet_operator.domain.status.engine_load import NO_LOAD, EngineLoad

Counts = tuple[int, int]  # requests that counted in an objective, and those of them that missed it
NOTHING: Counts = (0, 0)


@dataclass(frozen=True)
class Sample:
    """A revision's serving pods at `time`.

    `serving` counts the ready pods that are not terminating. `fresh` counts those of them whose load was read lately;
    `load` is the load of these together.
    """

    time: float
    serving: int
    fresh: int
    load: EngineLoad = NO_LOAD
    unqueued: int | None = None  # fresh pods where no request waits; None: not known
    silent: frozenset[str] = frozenset()  # fresh pods that generate nothing, by name

    @property
    def complete(self) -> bool:
        """Whether every serving pod was read."""
        return 0 < self.serving == self.fresh


@dataclass(frozen=True)
class ServiceLoad:
    """The gateways' measurements of a service, all revisions together.

    `age` is the time since the newest closed slice, in seconds. `held` requests wait in the gateways now. `arrivals` are
    requests per second in consecutive steps of `step` seconds, oldest first; the last step ended `age` ago. `ttft` is the
    95th percentile, in seconds, of the requests that ended in the last minute. `started` are the requests that were sent to each
    revision in the last half hour, by half-minutes since 1970: the scaler's means (`scaling.throughput`) have the same ones.
    """

    age: float
    held: int = 0
    arrivals: tuple[float, ...] = ()
    step: float = 10.0
    ttft: float | None = None
    tokens: float | None = None  # generated per second
    started: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ObjectiveCounts:
    """The counts of one objective by day (days since 1970-01-01 UTC), and of the last hour."""

    days: Mapping[int, Counts] = field(default_factory=dict)
    recent: Counts = NOTHING


@dataclass(frozen=True)
class SLOReading:
    """The counts of a service by the objectives' keys. `until` is the start of the newest slice in them. `seconds` is how much
    of the last hour was counted."""

    until: float
    seconds: float
    counts: Mapping[str, ObjectiveCounts] = field(default_factory=dict)
