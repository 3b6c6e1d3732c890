"""The latency windows of this gateway pod: closed slices per service, revision and stratum, stored for an hour.

A request counts in the slice in which the gateway learns of an event: its pick, its first token, its end. At a slice's
end the requests in flight are counted by age. Between two slices a request in flight therefore moves either to an event
or to a greater age, and never vanishes. A reader can tell from the ages alone how many requests became older than any
bound within a slice (`operator/pagefleet_operator/domain/analysis/waits.py`).

All times are seconds of a steady clock. Slices are named by Unix time, which is that clock plus an offset that is read
once. A wall clock that jumps therefore moves no slice. The operator compares `now` with its own clock.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from itertools import takewhile

import msgspec

from pagefleet_contract.slo import Objective
from pagefleet_gateway.cluster.paces import RevisionKey
from pagefleet_gateway.cluster.state import ServiceKey
from pagefleet_gateway.measuring.adjusted import AdjustedCounts
from pagefleet_gateway.measuring.slices import Outcome, SliceCounts
from pagefleet_gateway.picking.ledger import Group, Ledger, Ticket

VERSION = 3  # of the document; 1 had no requests in flight, 2 no load-adjusted times
SLICE_SECONDS = 2
RETENTION_SECONDS = 3600
MAX_BYTES = 256 * 1024 * 1024  # of all closed slices together


class Windows:
    """Slices by service; `offset` is what turns the steady clock into Unix time.

    A closed slice never changes. It is stored as its JSON, which takes a sixth to an eighth of its counters' size:
    hundreds of busy services have 1,800 slices each. Beyond `max_bytes` the service with the most bytes loses its oldest
    slices first.
    """

    def __init__(
        self, instance: str, ledger: Ledger | None = None, offset: float = 0.0, max_bytes: int = MAX_BYTES
    ) -> None:
        self.instance = instance
        self._ledger, self._offset, self._max_bytes = Ledger() if ledger is None else ledger, offset, max_bytes
        self._start: int | None = None  # of the open slice
        self._open: dict[Group, SliceCounts] = {}
        self._adjusted: dict[RevisionKey, AdjustedCounts] = {}
        self._arrivals: Counter[ServiceKey] = Counter()
        self._objectives: dict[ServiceKey, dict[str, tuple[int, int]]] = {}  # requests and misses by objective
        self._closed: dict[ServiceKey, deque[tuple[int, bytes]]] = {}  # starts in order, and their slices
        self._bytes: Counter[ServiceKey] = Counter()

    def record_arrival(self, key: ServiceKey, now: float) -> None:
        """Count a request for the service that came in within its limits, whatever its end."""
        self.tick(now)
        self._arrivals[key] += 1

    def record_objective(self, key: ServiceKey, objective: Objective, missed: bool, now: float) -> None:
        """Count a request that kept or missed an objective of the service."""
        self.tick(now)
        counts = self._objectives.setdefault(key, {})
        requests, misses = counts.get(objective.key, (0, 0))
        counts[objective.key] = requests + 1, misses + missed

    def record_first_token(self, ticket: Ticket, now: float, pod: str = "") -> None:
        """Count a request's time to first token when the token has passed. `pod` as in `Outcome`."""
        self.tick(now)
        if ticket.first_token is not None and not ticket.forced:
            self._counts(ticket.group).add_first_token(ticket.first_token)
            if (expected := ticket.expected) is not None:
                adjusted = self._adjusted_counts(ticket.group)
                adjusted.add_first_token(ticket.load, expected, ticket.first_token, pod)

    def record_end(self, outcome: Outcome, now: float) -> None:
        """Count a request that ended, and its failed attempts at the revisions whose pods failed."""
        self.tick(now)
        self._counts(outcome.group).add_end(outcome)
        if (expected := outcome.expected) is not None and not outcome.booked:
            if outcome.ttft is not None:
                adjusted = self._adjusted_counts(outcome.group)
                adjusted.add_first_token(outcome.load, expected, outcome.ttft, outcome.pod)
            elif outcome.waiting:
                self._adjusted_counts(outcome.group).add_unmeasured(outcome.load, expected, outcome.age)
        if not outcome.forced:
            group = outcome.group
            for revision in outcome.retried:
                failed = Group(group.namespace, group.service, revision, group.stratum)
                self._counts(failed).add_failed_attempt()

    def tick(self, now: float) -> None:
        """Close the open slice when its time is over. Call it at least once a slice: requests in flight grow older."""
        start = math.floor((now + self._offset) / SLICE_SECONDS) * SLICE_SECONDS
        if self._start is not None and start > self._start:
            self._close(self._start, now)
        self._start = start if self._start is None else max(start, self._start)

    def document(self, namespace: str, service: str, since: float, now: float) -> dict[str, object]:
        """Return the document of `/windows`, for msgspec: a service's closed slices with `start >= since`, oldest first."""
        self.tick(now)
        closed = self._closed.get((namespace, service), ())
        newest = takewhile(lambda entry: entry[0] >= since, reversed(closed))
        slices = msgspec.Raw(b"[" + b",".join([encoded for _, encoded in newest][::-1]) + b"]")
        return {
            "version": VERSION,
            "instance": self.instance,
            "now": now + self._offset,
            "sliceSeconds": SLICE_SECONDS,
            "slices": slices,
        }

    def sweep(self, now: float) -> None:
        """Drop slices older than an hour or beyond the size that all together may have, and services without any."""
        self.tick(now)
        oldest = now + self._offset - RETENTION_SECONDS
        for key, closed in list(self._closed.items()):
            while closed and closed[0][0] < oldest:
                self._drop_oldest(key)
        excess = sum(self._bytes.values()) - self._max_bytes
        while excess > 0:
            largest, _ = self._bytes.most_common(1)[0]
            excess -= self._drop_oldest(largest)

    def _counts(self, group: Group) -> SliceCounts:
        counts = self._open.get(group)
        if counts is None:
            counts = self._open[group] = SliceCounts()
        return counts

    def _adjusted_counts(self, group: Group) -> AdjustedCounts:
        key = (group.namespace, group.service, group.revision)
        counts = self._adjusted.get(key)
        if counts is None:
            counts = self._adjusted[key] = AdjustedCounts()
        return counts

    def _close(self, start: int, now: float) -> None:
        for group, count in self._ledger.take_opened().items():
            self._counts(group).started += count
        for group, count in self._ledger.take_fell_back().items():
            self._counts(group).fell_back += count
        for ticket in self._ledger.tickets():
            if not ticket.forced:
                self._counts(ticket.group).add_in_flight(ticket, now)
                if ticket.waiting and (expected := ticket.expected) is not None:
                    self._adjusted_counts(ticket.group).add_waiting(ticket.load, expected, now - ticket.opened)
        encoded: dict[ServiceKey, list[bytes]] = {}
        for key in {**self._arrivals, **self._objectives}:
            head = {"start": start, "revision": "", "stratum": "", "arrivals": self._arrivals[key], "requests": 0}
            judged = {"slo": self._objectives[key]} if key in self._objectives else {}
            encoded[key] = [msgspec.json.encode({**head, "errors": 0, **judged})]
        for group, counts in sorted(self._open.items()):
            text = msgspec.json.encode(counts.document(start, group.revision, group.stratum))
            encoded.setdefault((group.namespace, group.service), []).append(text)
        for (namespace, service, revision), adjusted in sorted(self._adjusted.items()):
            text = msgspec.json.encode(adjusted.document(start, revision))
            encoded.setdefault((namespace, service), []).append(text)
        for key, parts in encoded.items():
            joined = b",".join(parts)
            self._closed.setdefault(key, deque()).append((start, joined))
            self._bytes[key] += len(joined)
        self._open, self._adjusted, self._arrivals, self._objectives = {}, {}, Counter(), {}

    def _drop_oldest(self, key: ServiceKey) -> int:
        """Drop the oldest slice of a service and return its size."""
        closed = self._closed[key]
        size = len(closed.popleft()[1])
        self._bytes[key] -= size
        if not closed:
            del self._closed[key], self._bytes[key]
        return size
