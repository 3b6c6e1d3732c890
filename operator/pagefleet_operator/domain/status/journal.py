"""Collects what one decision did: each entry is one line of the decision log and one Event."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagefleet_operator.domain.status.plan import Event
from pagefleet_operator.domain.status.status import DecisionRecord

MOST_DECISIONS = 50


@dataclass
class Journal:
    now: float
    decisions: list[DecisionRecord] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def note(self, kind: str, message: str, *, warning: bool = False) -> None:
        self.decisions.append(DecisionRecord(self.now, kind, message))
        self.events.append(Event("Warning" if warning else "Normal", kind, message))

    def log(self, before: tuple[DecisionRecord, ...]) -> tuple[DecisionRecord, ...]:
        return (*before, *self.decisions)[-MOST_DECISIONS:]
