"""Decides how often a field is written again that somebody else keeps changing. The time is an argument.

A person who edits a child by hand finds it repaired at once. A program that writes the same field again and again would
otherwise be answered at every decision for ever: from the repair after FREE_REPAIRS on, the pause before the next one
doubles, up to MAX_PAUSE. A field of ours that must change because the plan has changed is written whatever this says.
"""

from __future__ import annotations

from dataclasses import dataclass

FREE_REPAIRS = 4
FIRST_PAUSE, MAX_PAUSE = 60.0, 3600.0
FORGOTTEN = 2 * MAX_PAUSE  # seconds without a repair after which a dispute is over


@dataclass(frozen=True)
class Dispute:
    """Repairs of one object so far, and the time of the latest."""

    repairs: int = 0
    latest: float = 0.0

    @property
    def pause(self) -> float:
        """The seconds from the latest repair to the next one."""
        beyond = self.repairs - FREE_REPAIRS
        return min(MAX_PAUSE, FIRST_PAUSE * 2.0 ** min(beyond, 10)) if beyond >= 0 else 0.0


class Disputes:
    """The disputes of all objects, by uid."""

    def __init__(self) -> None:
        self._disputes: dict[str, Dispute] = {}

    def may_repair(self, uid: str, now: float) -> bool:
        known = self._disputes.get(uid, Dispute())
        return now - known.latest >= known.pause

    def repaired(self, uid: str, now: float) -> Dispute:
        """Count a repair. Returns the dispute as it stands now."""
        known = self._disputes.get(uid, Dispute())
        count = known.repairs if now - known.latest < FORGOTTEN else 0
        self._disputes = {key: one for key, one in self._disputes.items() if now - one.latest < FORGOTTEN}
        self._disputes[uid] = Dispute(count + 1, now)
        return self._disputes[uid]
