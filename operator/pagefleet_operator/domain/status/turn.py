"""One turn of the decision: the input that all of its parts share, made once in `decide`.

A turn takes place every few seconds, whether the rollout moves or not. It is not a step of the rollout.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pagefleet_operator.domain.spec.parse import Spec
from pagefleet_operator.domain.spec.rollout import Rollout
from pagefleet_operator.domain.status.observation import Observation, RevisionReading
from pagefleet_operator.domain.status.plan import Event
from pagefleet_operator.domain.status.stage import reading_of
from pagefleet_operator.domain.status.status import DecisionRecord

MAX_DECISIONS, MAX_MESSAGE = 50, 1000  # entries of the log, and characters of one


@dataclass
class Journal:
    """The actions of one decision, each a line of the decision log and an Event. It is the only object that changes in a turn."""

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


@dataclass(frozen=True)
class Turn:
    """The observation, the time and the journal, which collects the turn's actions.

    While the spec cannot be used there is only a plain Turn, so a function that takes one works without a spec.
    """

    observation: Observation
    now: float
    journal: Journal

    def reading(self, revision: str) -> RevisionReading:
        """The reading of a revision; an empty one for a revision without a workload."""
        return reading_of(self.observation.revisions, revision)

    def command(self, verb: str) -> str:
        """The command line by which a person acts on this service's rollout, for messages."""
        return f"kubectl pagefleet rollout {verb} {self.observation.name} -n {self.observation.namespace}"


@dataclass(frozen=True)
class SpecTurn(Turn):
    """A turn with a spec that can be used. `target` is the hash of the revision that it asks for."""

    spec: Spec
    target: str

    @property
    def rollout(self) -> Rollout:
        """`spec.rollout` as typed values."""
        return self.spec.rollout
