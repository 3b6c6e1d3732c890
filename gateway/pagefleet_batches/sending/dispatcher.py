"""Keeps each lane's lines in flight: a task for each lane, and one for each line that was sent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial

from pagefleet_batches.jobs.lines import Line
from pagefleet_batches.sending.answers import Again, Answer, Over, Why, judge
from pagefleet_batches.sending.concurrency import Concurrency
from pagefleet_batches.sending.lanes import Lane, LaneKey, Pending, Source

log = logging.getLogger(__name__)

CLOSED_SECONDS = 1.0  # between two looks whether lines may be sent

Post = Callable[[Source, Line], Awaitable[Answer]]
OnOver = Callable[[Source, Line, Over], None]


class Dispatcher:
    """`post` sends one line and returns its answer, `open` says whether lines may be sent at all, `own_key` whether they carry
    a key of ours. `on_over` gets each line that is over, `on_empty` each source whose lines all are, `on_status` each answer's
    status."""

    def __init__(
        self,
        post: Post,
        most: int,
        *,
        open: Callable[[], bool],
        own_key: Callable[[], bool],
        on_over: OnOver,
        on_empty: Callable[[Source], None],
        on_status: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._post, self._most, self._open, self._own_key = post, most, open, own_key
        self._on_over, self._on_empty, self._on_status = on_over, on_empty, on_status
        self.lanes: dict[LaneKey, Lane] = {}
        self._changed: dict[LaneKey, asyncio.Event] = {}
        self._drivers: dict[LaneKey, asyncio.Task[None]] = {}
        self._sent: dict[Source, set[asyncio.Task[None]]] = {}
        self.on_failure: Callable[[BaseException], None] = lambda _: None  # of what must not go on, such as a full disk

    @property
    def in_flight(self) -> int:
        return sum(lane.in_flight for lane in self.lanes.values())

    @property
    def limit(self) -> int:
        return sum(int(lane.concurrency.limit) for lane in self.lanes.values())

    def add(self, key: LaneKey, source: Source) -> None:
        """Send the lines of a source until `on_empty` or `remove`."""
        if key not in self.lanes:
            self.lanes[key], self._changed[key] = Lane(Concurrency(self._most)), asyncio.Event()
            self._drivers[key] = asyncio.create_task(self._drive(key))
            self._drivers[key].add_done_callback(self._ended)
        self._sent[source] = set()
        self.lanes[key].add(source)
        self._changed[key].set()

    async def remove(self, key: LaneKey, source: Source) -> None:
        """Send no more lines of a source, and give up those in flight: the engines stop computing them."""
        sent = self._sent.pop(source, set())
        if key in self.lanes:
            self.lanes[key].remove(source)
        for task in sent:
            task.cancel()
        await asyncio.gather(*sent, return_exceptions=True)
        if key in self.lanes and not self.lanes[key].sources:
            driver = self._drivers.pop(key)
            del self.lanes[key], self._changed[key]
            driver.cancel()
            await asyncio.gather(driver, return_exceptions=True)

    async def drain(self, seconds: float) -> None:
        """Wait for the lines in flight, but no longer."""
        if tasks := [task for sent in self._sent.values() for task in sent]:
            await asyncio.wait(tasks, timeout=seconds)

    async def close(self) -> None:
        tasks = [*self._drivers.values(), *(task for sent in self._sent.values() for task in sent)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _drive(self, key: LaneKey) -> None:
        lane, changed = self.lanes[key], self._changed[key]
        while True:
            changed.clear()
            while self._open() and (chosen := lane.next(time.monotonic())) is not None:
                source, pending = chosen
                task = asyncio.create_task(self._send(lane, source, pending))
                self._sent[source].add(task)
                task.add_done_callback(partial(self._landed, key, lane, source))
                await asyncio.sleep(0)  # reading lines must not keep the loop from the answers
            for source in [one for one in lane.sources if one.done]:
                lane.remove(source)
                self._on_empty(source)
            seconds = lane.wait_seconds(time.monotonic()) if self._open() else CLOSED_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await changed.wait()

    async def _send(self, lane: Lane, source: Source, pending: Pending) -> None:
        sent_at = time.monotonic()
        answer = await self._post(source, pending.line)
        self._on_status(answer.status)
        line_id = f"batch_req_{secrets.token_hex(12)}"
        match judge(answer, line_id, pending.line.custom_id, pending.tries + 1, self._own_key()):
            case Again() as again:
                if again.why is Why.KEY:
                    log.error("the gateway does not know this server's API key: its lines wait %g s", again.seconds)
                lane.repeat(source, pending, again, sent_at, time.monotonic())
            case Over() as over:
                lane.concurrency.succeed(lane.in_flight)
                self._on_over(source, pending.line, over)

    def _landed(self, key: LaneKey, lane: Lane, source: Source, task: asyncio.Task[None]) -> None:
        """End a line's time in flight: also of a task that was cancelled before it began."""
        lane.left(source)
        self._sent.get(source, set()).discard(task)
        if key in self._changed:
            self._changed[key].set()
        self._ended(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_failure(error)
