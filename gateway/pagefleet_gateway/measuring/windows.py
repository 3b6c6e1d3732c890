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
from collections.abc import Mapping
from heapq import heapify, heappop, heapreplace
from itertools import chain, takewhile

import msgspec

from pagefleet_contract.slo import Objective
from pagefleet_gateway.cluster.service import ServiceKey
from pagefleet_gateway.cluster.state import RevisionKey
from pagefleet_gateway.cluster.steps import STEP_ENTRIES, Steps, finish, parts
from pagefleet_gateway.measuring.adjusted import AdjustedCounts
from pagefleet_gateway.measuring.slices import Outcome, SliceCounts
from pagefleet_gateway.picking.ledger import Group, Ledger, Ticket

VERSION = 3  # of the document; 1 had no requests in flight, 2 no load-adjusted times
SLICE_SECONDS = 2
RETENTION_SECONDS = 3600
STEP_SERVICES = 50  # whose slices are encoded in one step: a millisecond or two
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
        self._open = _Slice()
        self._over: Steps = iter(())  # what is still to do for the slice that is over
        # Starts in order, and their slices: those of counts, and those of load-adjusted times.
        self._closed: dict[ServiceKey, deque[tuple[int, bytes, bytes]]] = {}
        self._bytes: Counter[ServiceKey] = Counter()

    def record_arrival(self, key: ServiceKey, now: float) -> None:
        """Count a request for the service that came in within its limits, whatever its end."""
        self.tick(now)
        self._open.arrivals[key] += 1

    def record_objective(self, key: ServiceKey, objective: Objective, missed: bool, now: float) -> None:
        """Count a request that kept or missed an objective of the service."""
        self.tick(now)
        counts = self._open.objectives.setdefault(key, {})
        requests, misses = counts.get(objective.key, (0, 0))
        counts[objective.key] = requests + 1, misses + missed

    def record_first_token(self, ticket: Ticket, now: float, pod: str = "") -> None:
        """Count a request's time to first token when the token has passed. `pod` as in `Outcome`."""
        self.tick(now)
        if ticket.first_token is not None and not ticket.forced:
            self._open.counts(ticket.group).add_first_token(ticket.first_token)
            if (expected := ticket.expected) is not None:
                adjusted = self._open.adjusted_counts(ticket.group, streams=True)
                adjusted.add_time(ticket.load, expected, ticket.first_token, pod)

    def record_end(self, outcome: Outcome, now: float) -> None:
        """Count a request that ended, and its failed attempts at the revisions whose pods failed."""
        self.tick(now)
        self._open.counts(outcome.group).add_end(outcome)
        if (expected := outcome.expected) is not None and not outcome.booked:
            adjusted = self._open.adjusted_counts(outcome.group, streams=outcome.streams)
            if outcome.compared is not None:
                adjusted.add_time(outcome.load, expected, outcome.compared, outcome.pod)
            elif outcome.waiting or not outcome.streams:
                adjusted.add_unmeasured(outcome.load, expected, outcome.age)
        if not outcome.forced:
            group = outcome.group
            for revision in outcome.retried:
                failed = Group(group.namespace, group.service, revision, group.stratum)
                self._open.counts(failed).add_failed_attempt()

    def tick(self, now: float) -> None:
        """Close the open slice when its time is over. Call it at least once a slice: requests in flight grow older."""
        start = math.floor((now + self._offset) / SLICE_SECONDS) * SLICE_SECONDS
        if self._start is not None and start > self._start:
            self._close(self._start, now)
        self._start = start if self._start is None else max(start, self._start)

    def document(
        self, namespace: str, service: str, since: float, now: float, counts: float = 0.0
    ) -> dict[str, object]:
        """Return the document of `/windows`, for msgspec: a service's closed slices with `start >= since`, oldest first. Before
        `counts` only those with load-adjusted times."""
        self.tick(now)
        finish(self.steps())
        closed = self._closed.get((namespace, service), ())
        newest = takewhile(lambda entry: entry[0] >= since, reversed(closed))
        texts = [
            text
            for start, counted, adjusted in newest
            for text in (adjusted, counted if start >= counts else b"")
            if text
        ]
        slices = msgspec.Raw(b"[" + b",".join(texts[::-1]) + b"]")
        return {
            "version": VERSION,
            "instance": self.instance,
            "now": now + self._offset,
            "sliceSeconds": SLICE_SECONDS,
            "slices": slices,
        }

    def sweep(self, now: float) -> Steps:
        """Drop slices older than an hour or beyond the size that all together may have, and services without any."""
        self.tick(now)
        oldest = now + self._offset - RETENTION_SECONDS
        for part in parts(self._closed):
            for key in part:
                while (closed := self._closed.get(key)) and closed[0][0] < oldest:
                    self._drop_oldest(key)
            yield
        excess = sum(self._bytes.values()) - self._max_bytes
        largest = [(-size, key) for key, size in self._bytes.items()] if excess > 0 else []
        heapify(largest)
        while excess > 0 and largest:
            for _ in range(STEP_ENTRIES):
                if excess <= 0 or not largest:
                    break
                key = largest[0][1]
                excess -= self._drop_oldest(key)
                if key in self._bytes:
                    heapreplace(largest, (-self._bytes[key], key))
                else:
                    heappop(largest)
            yield

    def steps(self) -> Steps:
        """Store the slice that is over. With thousands of services it is too much for one step of the loop."""
        return self._over

    def _close(self, start: int, now: float) -> None:
        """Begin the next slice. What the one that is over has counted changes no more, and the tickets of now do not either."""
        finish(self._over)  # of the slice before
        over, self._open = self._open, _Slice()
        opened, fell_back = self._ledger.take_opened(), self._ledger.take_fell_back()
        self._over = chain(
            over.add_opened(opened, fell_back),
            over.add_in_flight(list(self._ledger.tickets()), now),
            self._store(over, start),
        )

    def _store(self, over: _Slice, start: int) -> Steps:
        for keys in parts(by_service := over.by_service(), STEP_SERVICES):
            for key in keys:
                counted, adjusted = over.encoded(key, by_service[key], start)
                self._closed.setdefault(key, deque()).append((start, counted, adjusted))
                self._bytes[key] += len(counted) + len(adjusted)
            yield

    def _drop_oldest(self, key: ServiceKey) -> int:
        """Drop the oldest slice of a service and return its size."""
        closed = self._closed[key]
        _, counted, adjusted = closed.popleft()
        size = len(counted) + len(adjusted)
        self._bytes[key] -= size
        if not closed:
            del self._closed[key], self._bytes[key]
        return size


class _Slice:
    """What a slice has counted."""

    def __init__(self) -> None:
        self.groups: dict[Group, SliceCounts] = {}
        self.adjusted: dict[tuple[RevisionKey, bool], AdjustedCounts] = {}  # of whole answers, and of streams (True)
        self.arrivals: Counter[ServiceKey] = Counter()
        self.objectives: dict[ServiceKey, dict[str, tuple[int, int]]] = {}  # requests and misses by objective

    def counts(self, group: Group) -> SliceCounts:
        counts = self.groups.get(group)
        if counts is None:
            counts = self.groups[group] = SliceCounts()
        return counts

    def adjusted_counts(self, group: Group, *, streams: bool) -> AdjustedCounts:
        key = (group.namespace, group.service, group.revision), streams
        counts = self.adjusted.get(key)
        if counts is None:
            counts = self.adjusted[key] = AdjustedCounts()
        return counts

    def add_opened(self, opened: Mapping[Group, int], fell_back: Mapping[Group, int]) -> Steps:
        """Count the requests that were sent to a pod, and those that another service had to answer."""
        for groups in parts({**opened, **fell_back}):
            for group in groups:
                counts = self.counts(group)
                counts.started += opened.get(group, 0)
                counts.fell_back += fell_back.get(group, 0)
            yield

    def add_in_flight(self, in_flight: list[Ticket], now: float) -> Steps:
        """Count the requests in flight at the slice's end."""
        for tickets in parts(in_flight):
            for ticket in tickets:
                if not ticket.forced:
                    self.counts(ticket.group).add_in_flight(ticket, now)
                    if (ticket.waiting or not ticket.streams) and (expected := ticket.expected) is not None:
                        adjusted = self.adjusted_counts(ticket.group, streams=ticket.streams)
                        adjusted.add_waiting(ticket.load, expected, now - ticket.opened)
            yield

    def by_service(self) -> dict[ServiceKey, list[Group]]:
        """Return the services of which anything was counted, and their groups."""
        found: dict[ServiceKey, list[Group]] = {key: [] for key in (*self.arrivals, *self.objectives)}
        for group in self.groups:
            found.setdefault((group.namespace, group.service), []).append(group)
        return found

    def encoded(self, key: ServiceKey, groups: list[Group], start: int) -> tuple[bytes, bytes]:
        """Return a service's counters as JSON: its arrivals, objectives and groups, and its load-adjusted times."""
        texts, times = list[bytes](), list[bytes]()
        if key in self.arrivals or key in self.objectives:
            head = {"start": start, "revision": "", "stratum": "", "arrivals": self.arrivals[key], "requests": 0}
            judged = {"slo": self.objectives[key]} if key in self.objectives else {}
            texts.append(msgspec.json.encode({**head, "errors": 0, **judged}))
        for group in sorted(groups):
            document = self.groups[group].document(start, group.revision, group.stratum)
            texts.append(msgspec.json.encode(document))
        for revision in sorted({group.revision for group in groups}):
            for streams, names in ((True, ("load", "pods")), (False, ("wholeLoad", "wholePods"))):
                adjusted = self.adjusted.get(((*key, revision), streams))
                if adjusted is not None and adjusted.strata:
                    times.append(msgspec.json.encode(adjusted.document(start, revision, *names)))
        return b",".join(texts), b",".join(times)
