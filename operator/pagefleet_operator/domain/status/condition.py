"""One condition before it is written, and the problem that degrades a service."""

from __future__ import annotations

from dataclasses import dataclass

from pagefleet_operator.domain.status.status import Condition

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
REFUSED = "ChildRefused"  # the reason of Degraded, and of Events
NewCondition = tuple[str, str, str, str]  # type, status, reason, message


@dataclass(frozen=True)
class Problem:
    """The cause of a degraded service: its spec cannot be used, its pods cannot run, or its objects are refused."""

    reason: str
    message: str


def with_transition_time(condition: NewCondition, before: Condition | None, generation: int, now: float) -> Condition:
    """Give a condition its transition time: the one of `before` unless its status has changed."""
    kind, status, reason, message = condition
    moved = before is None or before.status != status
    since = now if moved or before is None else before.last_transition_time
    return Condition(kind, status, reason, message[:2000], since, generation)
