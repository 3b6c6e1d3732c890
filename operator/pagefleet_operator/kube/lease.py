"""Which of several operators may write. Decided from a coordination.k8s.io Lease and from the time at which this process
itself saw it change. Clocks of two machines are never compared: `renewTime` is written for people and never read.

A holder that has not renewed for `LEASE_SECONDS` of the observer's own monotonic time may be succeeded. The holder
begins no write from `MARGIN_SECONDS` earlier on, counted from when it *sent* its last successful renewal, and gives up
after `LEASE_SECONDS` the writes that it has begun. So there is no moment with two writers, however long a process was
stopped. (The algorithm of client-go's leaderelection, with the
holder's deadline counted from the request's start.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

LEASE_SECONDS = 15.0
MARGIN_SECONDS = 5.0
RENEW_SECONDS = 3.0
# One request for the Lease that is never answered leaves time for the next try before the Lease is lost: client-go has the same limit.
REQUEST_SECONDS, RETRY_SECONDS = 5.0, 0.5
SHORTEST_PAUSE_SECONDS = 0.1


class Move(Enum):
    RENEW = "renew"  # we hold the Lease and write it again
    TAKE = "take"  # nobody holds it, it was released, or it has expired
    WAIT = "wait"  # another operator holds it


@dataclass(frozen=True)
class Lease:
    """The Lease in the API server. `holder` is "" when it was released; `version` changes with every write."""

    holder: str
    version: str


@dataclass(frozen=True)
class Watch:
    """The Lease as this process last read it, and since when (in its own monotonic seconds) it is unchanged."""

    lease: Lease | None = None
    since: float = 0.0

    def updated(self, lease: Lease | None, now: float) -> Watch:
        return self if lease == self.lease else replace(self, lease=lease, since=now)


def move(watch: Watch, me: str, now: float) -> Move:
    """What to do about the lease as last seen."""
    lease = watch.lease
    if lease is None or not lease.holder:
        return Move.TAKE
    if lease.holder == me:
        return Move.RENEW
    return Move.TAKE if now - watch.since >= LEASE_SECONDS else Move.WAIT


def pause(watch: Watch, me: str, now: float, *, failed: bool = False) -> float:
    """Return the seconds until the Lease is to be looked at again: RENEW_SECONDS, or until another's Lease may be taken. `failed` says that
    a request of the holder has failed."""
    if failed:
        return RETRY_SECONDS
    if move(watch, me, now) is Move.WAIT:
        return max(SHORTEST_PAUSE_SECONDS, min(RENEW_SECONDS, watch.since + LEASE_SECONDS - now))
    return RENEW_SECONDS


def holds(renewed: float | None, now: float) -> bool:
    """Whether a holder that sent its last successful renewal at `renewed` may still write."""
    return renewed is not None and now - renewed < LEASE_SECONDS - MARGIN_SECONDS


def write_seconds(renewed: float | None, now: float) -> float:
    """Return the seconds after which a write that begins now must be over. 0: it may not begin."""
    return renewed + LEASE_SECONDS - now if renewed is not None and holds(renewed, now) else 0.0
