"""Protects the rule that at most one operator may write at any moment, whatever is delayed, lost or frozen, and that
somebody leads again soon after the last one has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_operator.kube import lease
from pagefleet_operator.kube.client import REQUEST_SECONDS, Api, Document
from pagefleet_operator.kube.leader_election import Leadership
from pagefleet_operator.kube.lease import (
    LEASE_SECONDS,
    MARGIN_SECONDS,
    RENEW_SECONDS,
    SHORTEST_PAUSE_SECONDS,
    Lease,
    Move,
    Watch,
)


@dataclass
class Server:
    """The Lease object: compare-and-swap on its version."""

    lease: Lease | None = None
    writes: int = 0

    def swap(self, expected: Lease | None, holder: str) -> bool:
        if expected != self.lease:
            return False
        self.writes += 1
        self.lease = Lease(holder, str(self.writes))
        return True


@dataclass
class Candidate:
    """One operator with a monotonic clock of its own: `offset` seconds from true time."""

    name: str
    offset: float
    watch: Watch = field(default_factory=Watch)
    renewed: float | None = None
    pending: tuple[float, Lease | None] | None = None  # a decision on the way to the server

    def look(self, server: Server, time: float) -> None:
        now = time + self.offset
        self.watch = self.watch.updated(server.lease, now)
        if lease.move(self.watch, self.name, now) is not Move.WAIT:
            self.pending = (now, server.lease)

    def write(self, server: Server) -> None:
        """The request that was decided on arrives, perhaps long after."""
        if self.pending is not None:
            sent, expected = self.pending
            self.pending = None
            if server.swap(expected, self.name):
                self.renewed = sent

    def may_write(self, time: float) -> bool:
        return lease.holds(self.renewed, time + self.offset)


@given(
    offsets=st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)),
    steps=st.lists(
        st.tuples(st.floats(0.05, 12.0), st.integers(0, 2), st.sampled_from(["look", "write", "both", "nothing"])),
        max_size=120,
    ),
)
def test_never_two_writers(offsets: tuple[float, float, float], steps: list[tuple[float, int, str]]) -> None:
    server, time = Server(), 0.0
    over = [0.0, 0.0, 0.0]  # when the last write that each may have begun is over
    candidates = [Candidate(f"operator-{index}", offset) for index, offset in enumerate(offsets)]
    for passed, who, what in steps:
        time += passed
        if what in ("look", "both"):
            candidates[who].look(server, time)
        if what in ("write", "both"):
            candidates[who].write(server)
        assert sum(candidate.may_write(time) for candidate in candidates) <= 1
        for index, candidate in enumerate(candidates):
            if candidate.may_write(time):
                assert all(time >= end - 1e-6 for other, end in enumerate(over) if other != index)
                over[index] = time + lease.write_seconds(candidate.renewed, time + candidate.offset)
                assert over[index] >= time + MARGIN_SECONDS - 1e-6


@given(start=st.floats(-1e6, 1e6), phase=st.floats(0.0, RENEW_SECONDS))
def test_a_dead_holder_is_succeeded_within_the_lease_and_one_turn(start: float, phase: float) -> None:
    server, dead, heir = Server(), Candidate("dead", start), Candidate("heir", -start)
    dead.look(server, 0.0)
    dead.write(server)
    time = phase
    while not heir.may_write(time):
        heir.look(server, time)
        heir.write(server)
        assert time <= phase + LEASE_SECONDS + 2 * SHORTEST_PAUSE_SECONDS
        time += lease.pause(heir.watch, heir.name, time + heir.offset)


def test_a_lease_given_up_is_taken_at_once() -> None:
    assert lease.move(Watch(Lease("", "7"), 100.0), "me", 100.0) is Move.TAKE
    assert lease.move(Watch(Lease("other", "7"), 100.0), "me", 100.0) is Move.WAIT
    assert lease.move(Watch(Lease("me", "7"), 0.0), "me", 100.0) is Move.RENEW


class Skipping(asyncio.SelectorEventLoop):
    """An event loop in which time passes only when nothing else is to be done, and then at once."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self.now = max(self.now, self._scheduled[0]._when)
        super()._run_once()


class OnceSilent(Api):
    """An API server with a Lease, which answers nothing to its request number `silent`, as behind a connection that is cut unseen."""

    def __init__(self, silent: int) -> None:
        super().__init__(None)
        self._silent, self.requests = silent, 0
        self._lease: Document | None = None

    def reserved(self) -> Api:
        return self

    async def _request(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None = None, kind: str = ""
    ) -> Document:
        self.requests += 1
        if self.requests == self._silent:
            async with asyncio.timeout(REQUEST_SECONDS):
                await asyncio.Event().wait()
        if body is not None:
            self._lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.requests)}}
        return self._lease or {"metadata": {"resourceVersion": "0"}, "spec": {}}


@pytest.mark.parametrize("silent", [3, 4, 5, 6])
def test_one_request_that_nobody_answers_costs_no_lease(silent: int) -> None:
    """The operator waited 15 s for it, lost the Lease meanwhile and ended, with all that it remembered of every service's load."""
    loop, api = Skipping(), OnceSilent(silent)

    async def led() -> None:
        leader = Leadership(api, "system", "lease", "me", loop.time)
        running = loop.create_task(leader.run())
        for second in range(60):
            await asyncio.wait((running,), timeout=1.0)
            assert not running.done()
            assert leader.check() >= MARGIN_SECONDS, f"in second {second} nothing may be written"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    loop.run_until_complete(led())
    loop.close()
    assert api.requests >= 2 * 60 / (RENEW_SECONDS + 1)
