"""A request on its way through the simulated fleet, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Ending(StrEnum):
    OPEN = "open"
    SERVED = "served"
    DROPPED = "dropped"  # refused by a full queue, held too long, or too long for the KV cache
    LEFT = "left"  # still in flight when the simulation ended


@dataclass(frozen=True)
class Arrival:
    """`at` seconds from the trace's start. Requests of the same `group` begin with the same `shared` tokens. `priority` is the
    request's class of `spec.traffic.priorities`, "" where it names none."""

    at: float
    prompt: int
    output: int
    group: int = -1
    shared: int = 0
    priority: str = ""


class Request:
    """The state of an arrival. `sent` (to its pod), `first` and `end` are times, NaN before; `left` prompt tokens are not computed yet. Requests of a
    lower `rank` go first."""

    __slots__ = (
        "arrival",
        "end",
        "ending",
        "first",
        "generated",
        "held",
        "left",
        "pinned",
        "rank",
        "sent",
        "stop",
        "upto",
    )

    def __init__(self, arrival: Arrival, rank: int = 0) -> None:
        self.arrival, self.rank = arrival, rank
        self.sent = self.first = self.end = float("nan")
        self.ending = Ending.OPEN
        self.generated = 0  # tokens known when the sequence was last (re)admitted
        self.left = 0
        self.held = 0  # tokens of KV charged to it when it was admitted
        self.stop = 0  # the engine's step count at which it ends
        self.upto = 0  # the engine's step count at which its decoding began
        self.pinned = False  # holds its group's shared prefix

    @property
    def ttft(self) -> float:
        return self.first - self.arrival.at

    @property
    def tpot(self) -> float:
        """Seconds per token after the first; 0 for answers of one token."""
        return (self.end - self.first) / (self.arrival.output - 1) if self.arrival.output > 1 else 0.0

    @property
    def e2e(self) -> float:
        return self.end - self.arrival.at


def requests(arrivals: Sequence[Arrival], priorities: Sequence[str] = ()) -> list[Request]:
    """`priorities` are classes, the most important first; a request of no such class comes last."""
    ranks = {name: rank for rank, name in enumerate(priorities)}
    return [Request(arrival, ranks.get(arrival.priority, len(ranks))) for arrival in arrivals]
