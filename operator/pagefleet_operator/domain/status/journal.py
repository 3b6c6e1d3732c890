"""Collects the actions of one decision: each entry is one line of the decision log and one Event."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagefleet_operator.domain.status.plan import Event
from pagefleet_operator.domain.status.status import DecisionRecord

MAX_DECISIONS, MAX_MESSAGE = 50, 1000  # entries of the log, and characters of one


@dataclass
class Journal:
    """The only mutable object of a decision: it grows by one entry for each action."""

    now: float
    decisions: list[DecisionRecord] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def note(self, kind: str, message: str, *, warning: bool = False) -> None:
        """Add one action to the decision log and to the Events."""
        self.decisions.append(DecisionRecord(self.now, kind, message[:MAX_MESSAGE]))
        self.events.append(Event("Warning" if warning else "Normal", kind, message))

    def log(self, before: tuple[DecisionRecord, ...]) -> tuple[DecisionRecord, ...]:
        """Append this decision's entries to the stored log, and drop the oldest ones beyond the limit."""
        return (*before, *self.decisions)[-MAX_DECISIONS:]
