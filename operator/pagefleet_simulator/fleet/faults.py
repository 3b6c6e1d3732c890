"""Faults of a simulated fleet: engines that report nothing for a while, and a replica that hangs.

Times are in seconds since the trace began. Data only: the simulation carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outage:
    """No scaler can read an engine from `begin` to `end`. Gateways' counts stay readable."""

    begin: float
    end: float

    def covers(self, now: float) -> bool:
        return self.begin <= now < self.end


@dataclass(frozen=True)
class Hang:
    """The oldest ready replica takes no step from `begin` to `end`, and reports that it is idle. Then it goes on with its requests."""

    begin: float
    end: float


Fault = Outage | Hang
