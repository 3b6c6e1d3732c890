"""What sizing remembers and looks at: a revision's pods summed up at one time, and what arrives at the service. Data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """A revision's serving pods at `time`, summed up over those that were read.

    `serving` counts ready pods that are not terminating, `fresh` those of them that were read lately. `preemptions`
    and `tokens` (generated) are per second. `pages` are those in use, neither blank nor reusable.
    """

    time: float
    serving: int
    fresh: int
    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    pages: int = 0
    total_pages: int = 0
    preemptions: float = 0.0
    tokens: float = 0.0
    unqueued: int | None = None  # of the fresh ones, those where nothing waits; None: not known

    @property
    def complete(self) -> bool:
        """Whether every serving pod was read."""
        return 0 < self.serving == self.fresh


@dataclass(frozen=True)
class ServiceLoad:
    """What the gateways measured for a service, all revisions together. `age`: seconds since the newest closed slice.

    `arrivals` are requests per second in consecutive steps of `step` seconds, oldest first; the last one ended `age`
    ago. `ttft` is the 95th percentile, in seconds, of the requests that ended in the last minute.
    `held` requests wait in the gateway now.
    """

    age: float
    held: int = 0
    arrivals: tuple[float, ...] = ()
    step: float = 10.0
    ttft: float | None = None
    tokens: float | None = None  # generated per second
