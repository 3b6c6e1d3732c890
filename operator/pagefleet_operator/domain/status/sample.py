"""The measurements that sizing uses: a revision's pods summed up at one time, and the service's arrivals. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from pagefleet_operator.domain.status.engine_load import NO_LOAD, EngineLoad


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

    @property
    def complete(self) -> bool:
        """Whether every serving pod was read."""
        return 0 < self.serving == self.fresh


@dataclass(frozen=True)
class ServiceLoad:
    """The gateways' measurements of a service, all revisions together.

    `age` is the time since the newest closed slice, in seconds. `held` requests wait in the gateways now. `arrivals` are
    requests per second in consecutive steps of `step` seconds, oldest first; the last step ended `age` ago. `ttft` is the
    95th percentile, in seconds, of the requests that ended in the last minute.
    """

    age: float
    held: int = 0
    arrivals: tuple[float, ...] = ()
    step: float = 10.0
    ttft: float | None = None
    tokens: float | None = None  # generated per second
