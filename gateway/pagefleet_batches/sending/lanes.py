"""Which line is sent next. A lane is the lines of one model of one service; its clients take turns. Pure, but for the iterators of lines.

Where no path names the service, clients that may ask the same services share a lane: to others the model's name may mean another
service, whose refusals say nothing about this one.

Times are steady seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from pagefleet_batches.jobs.lines import Line
from pagefleet_batches.sending.answers import Again, Why
from pagefleet_batches.sending.concurrency import Concurrency

# Service (`namespace/name`), or the services that its clients may ask ("" for all), and model.
LaneKey = tuple[str, str]

MOST_AGAIN = 256  # lines of a batch that wait in memory to be sent again; until one was, no further line is read


@dataclass(frozen=True, order=True)
class Pending:
    """A line that waits to be sent again. `tries`: times that a server answered it with an error of its own."""

    ready_at: float
    number: int
    line: Line = field(compare=False)
    tries: int = field(compare=False, default=0)


@dataclass(eq=False)
class Source:
    """The lines of one batch that are not answered. `lines` yields those never sent, in the file's order."""

    batch_id: str
    client: str
    lines: Iterator[Line]
    again: list[Pending] = field(default_factory=list)  # a heap
    in_flight: int = 0
    read: bool = False  # `lines` has no more

    def next(self, now: float) -> Pending | None:
        """Take the next line that may be sent now."""
        if self.again and self.again[0].ready_at <= now:
            return heapq.heappop(self.again)
        if self._reads:
            line = next(self.lines, None)
            if line is not None:
                return Pending(now, line.number, line)
            self.read = True
        return None

    @property
    def _reads(self) -> bool:
        """Whether a further line may be read."""
        return not self.read and len(self.again) < MOST_AGAIN

    @property
    def done(self) -> bool:
        """Whether every line was answered."""
        return self.read and not self.again and not self.in_flight

    def ready_at(self, now: float) -> float | None:
        """Return when its next line may be sent; None where none is left to send."""
        if self._reads:
            return now
        return self.again[0].ready_at if self.again else None


@dataclass
class Lane:
    """The sources of one model, and how many of their lines may be in flight."""

    concurrency: Concurrency
    sources: list[Source] = field(default_factory=list)  # whose turn is next first
    in_flight: int = 0
    over_quota: dict[str, float] = field(default_factory=dict)  # client -> until when

    def add(self, source: Source) -> None:
        self.sources.append(source)

    def remove(self, source: Source) -> None:
        if source in self.sources:
            self.sources.remove(source)

    def next(self, now: float) -> tuple[Source, Pending] | None:
        """Take the next line; None when none may be sent now."""
        if not self.concurrency.room(self.in_flight, now):
            return None
        for source in list(self.sources):
            if self.over_quota.get(source.client, now) > now:
                continue
            pending = source.next(now)
            if pending is not None:
                source.in_flight += 1
                self.in_flight += 1
                self._had_turn(source)
                return source, pending
        return None

    def _had_turn(self, source: Source) -> None:
        """Put the client's sources behind those of others; among a client's the order stays: its oldest batch comes first."""
        own = [one for one in self.sources if one.client == source.client]
        self.sources = [one for one in self.sources if one.client != source.client] + own

    def left(self, source: Source) -> None:
        """End a line's time in flight."""
        source.in_flight -= 1
        self.in_flight -= 1

    def repeat(self, source: Source, pending: Pending, again: Again, sent_at: float, now: float) -> None:
        """Have a line sent again. Call it before `left`."""
        tries, ready_at = pending.tries, now
        match again.why:
            case Why.BUSY | Why.KEY:
                self.concurrency.refuse(sent_at, again.seconds, now)
            case Why.QUOTA:
                self.over_quota[source.client] = max(self.over_quota.get(source.client, now), now + again.seconds)
            case Why.FAILED:
                tries, ready_at = tries + 1, now + again.seconds
        heapq.heappush(source.again, Pending(ready_at, pending.number, pending.line, tries))

    def wait_seconds(self, now: float) -> float | None:
        """Return after which time a line may be sent without any event; None where only an event can change that."""
        if self.in_flight >= int(self.concurrency.limit):
            return None
        times = [
            max(at, self.concurrency.paused_until, self.over_quota.get(source.client, at))
            for source in self.sources
            if (at := source.ready_at(now)) is not None
        ]
        return max(0.0, min(times) - now) if times else None
