"""Who of several operators may write: decides from a coordination.k8s.io Lease and from when this process itself saw it
change. Never compares clocks of two machines: `renewTime` is written for people and never read.

A holder that has not renewed for `LEASE_SECONDS` of the observer's own monotonic time may be succeeded. The holder
stops writing `MARGIN_SECONDS` earlier, counted from when it *sent* its last successful renewal, so that there is no
moment with two writers, however long a process was stopped. (The algorithm of client-go's leaderelection, with the
holder's deadline counted from the request's start.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

LEASE_SECONDS = 15.0
MARGIN_SECONDS = 5.0
RENEW_SECONDS = 3.0


class Move(Enum):
    RENEW = "renew"  # ours: write it again
    TAKE = "take"  # nobody's, given up, or silent for too long
    WAIT = "wait"  # somebody else's


@dataclass(frozen=True)
class Lease:
    """What the API server holds. `holder` is "" when it was given up; `version` changes with every write."""

    holder: str
    version: str


@dataclass(frozen=True)
class Watch:
    """What this process has seen: the lease, and since when (its own monotonic seconds) it has been so."""

    lease: Lease | None = None
    since: float = 0.0

    def saw(self, lease: Lease | None, now: float) -> Watch:
        return self if lease == self.lease else replace(self, lease=lease, since=now)


def move(watch: Watch, me: str, now: float) -> Move:
    """What to do about the lease as last seen."""
    lease = watch.lease
    if lease is None or not lease.holder:
        return Move.TAKE
    if lease.holder == me:
        return Move.RENEW
    return Move.TAKE if now - watch.since >= LEASE_SECONDS else Move.WAIT


def holds(renewed: float | None, now: float) -> bool:
    """Whether a holder that sent its last successful renewal at `renewed` may still write."""
    return renewed is not None and now - renewed < LEASE_SECONDS - MARGIN_SECONDS
