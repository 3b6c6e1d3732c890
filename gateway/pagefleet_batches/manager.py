"""The life of batches: checks a new one's file, has its lines sent, writes its files at the end. Goes on after a restart where it stopped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from pagefleet_batches.jobs import batch as states
from pagefleet_batches.jobs.batch import WINDOWS, Batch, Status
from pagefleet_batches.jobs.errors import ApiError
from pagefleet_batches.jobs.lines import Checked, Line, Problem, bounded, check, numbered, parse
from pagefleet_batches.metrics import Metrics
from pagefleet_batches.sending.answers import Answer, Over, expired
from pagefleet_batches.sending.dispatcher import Dispatcher
from pagefleet_batches.sending.lanes import LaneKey, Source
from pagefleet_batches.settings import DAY, Settings
from pagefleet_batches.storage import disk
from pagefleet_batches.storage.batches import Batches
from pagefleet_batches.storage.files import BATCH_OUTPUT, FileInfo, Files
from pagefleet_batches.storage.journal import Journal, Row

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0

GatewayPost = Callable[[str, bytes, str], Awaitable[Answer]]


@dataclass(eq=False)
class Run:
    """A batch that has not ended. `over` is set when its lines are, or when it is cancelled or expires."""

    batch: Batch
    over: asyncio.Event
    journal: Journal | None = None
    source: Source | None = None


class Manager:
    """All batches. `post(path, body, client)` sends a line; `clock` returns Unix seconds. `scope(client)` names the services that a
    client may ask: to clients of one scope a model's name means the same service."""

    def __init__(
        self,
        settings: Settings,
        files: Files,
        batches: Batches,
        post: GatewayPost,
        metrics: Metrics,
        *,
        may_send: Callable[[], bool] = lambda: True,
        own_key: Callable[[], bool] = lambda: False,
        scope: Callable[[str], str] = lambda _: "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self.files, self._batches, self._metrics, self._clock = settings, files, batches, metrics, clock
        self._gateway_post, self._scope, self._closing = post, scope, False
        self._runs: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # with what must not go on
        self._dispatcher = Dispatcher(
            self._post,
            settings.max_in_flight,
            open=lambda: may_send() and not self._closing,
            own_key=own_key,
            on_over=self._line_over,
            on_empty=lambda source: self._runs[source.batch_id].over.set(),
            on_status=lambda status: metrics.sent.labels(str(status)).inc(),
        )
        self._dispatcher.on_failure = self._fail

    def start(self) -> None:
        """Go on with the batches that have not ended."""
        for batch in self._batches:
            if not batch.ended:
                self._begin(batch)

    async def close(self) -> None:
        """Stop. Lines in flight have `drain_seconds` to be answered; the others are sent again after the next start."""
        self._closing = True
        await self._dispatcher.drain(self._settings.drain_seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._dispatcher.close()
        for run in self._runs.values():
            if run.journal is not None:
                run.journal.sync()
                run.journal.close()

    # What clients ask for.

    def create(self, client: str, service: str, endpoint: str, file: FileInfo, options: Mapping[str, object]) -> Batch:
        """Make a batch. `options`: `completion_window`, `metadata` and `output_seconds`, checked. Raises ApiError."""
        active = sum(run.batch.client == client for run in self._active())
        if active >= self._settings.max_client_batches:
            raise ApiError(
                429, "too_many_batches", f"{active} batches of this client have not ended, and {active} may: wait for one, or cancel it",
                retry_after=60,
            )  # fmt: skip
        now, window = int(self._clock()), str(options["completion_window"])
        metadata, seconds = options.get("metadata"), options.get("output_seconds")
        batch = Batch(
            id=disk.new_id("batch"),
            client=client,
            service=service,
            endpoint=endpoint,
            input_file_id=file.id,
            completion_window=window,
            created_at=now,
            expires_at=now + WINDOWS[window],
            metadata=metadata if isinstance(metadata, dict) else None,
            output_seconds=seconds if isinstance(seconds, int) else None,
        )
        self._begin(self._batches.put(batch))
        return batch

    def get(self, client: str, name: str) -> Batch | None:
        batch = self._batches.get(client, name)
        return None if batch is None else self._current(batch)

    def all(self, client: str) -> list[Batch]:
        """Return a client's batches, the oldest first."""
        return [self._current(batch) for batch in self._batches if batch.client == client]

    def cancel(self, batch: Batch) -> Batch:
        run = self._runs.get(batch.id)
        if run is not None:
            run.batch = self._batches.put(states.cancelled(run.batch, int(self._clock())))
            if run.batch.status is Status.CANCELLING:
                run.over.set()
        return self.get(batch.client, batch.id) or batch

    def using(self, file: FileInfo) -> str:
        """Return the batch that has not ended and reads the file; "" for none."""
        return next((run.batch.id for run in self._active() if run.batch.input_file_id == file.id), "")

    def _active(self) -> Iterator[Run]:
        return (run for run in self._runs.values() if not run.batch.ended)

    def _current(self, batch: Batch) -> Batch:
        run = self._runs.get(batch.id)
        if run is None or run.journal is None:
            return batch
        return replace(run.batch, counts=run.journal.totals.counts, usage=run.journal.totals.usage)

    # Time.

    async def follow(self) -> None:
        """Look at the clock until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self.tick()

    async def tick(self) -> None:
        """End what is overdue, remove what was kept long enough, and have the disk keep the answers so far."""
        now = self._clock()
        for run in list(self._runs.values()):
            if states.overdue(run.batch, now):
                run.over.set()
            if run.journal is not None:
                await asyncio.to_thread(run.journal.sync)
        in_use = {run.batch.input_file_id for run in self._active()}
        for file in list(self.files):
            if file.expires_at <= now and file.id not in in_use:
                await asyncio.to_thread(self.files.remove, file.id)
        for batch in list(self._batches):
            if batch.ended_at is not None and batch.ended_at + self._settings.retention_seconds <= now:
                self._batches.remove(batch)
        self._measure(now)

    def _measure(self, now: float) -> None:
        running = [run for run in self._runs.values() if run.journal is not None]
        answered = sum(len(run.journal.totals.answered) for run in running if run.journal is not None)
        self._metrics.active.set(len(self._runs))
        self._metrics.pending.set(sum(run.batch.total for run in running) - answered)
        self._metrics.in_flight.set(self._dispatcher.in_flight)
        self._metrics.limit.set(self._dispatcher.limit)
        self._metrics.next_expiry.set(min((run.batch.expires_at - now for run in self._runs.values()), default=DAY))
        self._metrics.stored.set(sum(file.bytes for file in self.files))
        self._metrics.free.set(max(0, disk.free_bytes(self._settings.folder)))

    # One batch's life.

    def _begin(self, batch: Batch) -> None:
        run = self._runs[batch.id] = Run(batch, asyncio.Event())
        task = asyncio.create_task(self._live(run), name=batch.id)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    async def _live(self, run: Run) -> None:
        if run.batch.status is Status.VALIDATING:
            file = await asyncio.to_thread(self._check, run.batch)
            if run.batch.status is Status.VALIDATING and not states.overdue(run.batch, self._clock()):
                run.batch = self._batches.put(states.checked(run.batch, file, int(self._clock())))
        if run.batch.status is not Status.FAILED:
            run.journal = await asyncio.to_thread(self._batches.journal, run.batch)
            if run.batch.status is Status.IN_PROGRESS and not states.overdue(run.batch, self._clock()):
                await self._send(run)
            # A line that was given up in flight waits nowhere, so only the journal knows whether each was answered.
            if run.batch.status is Status.IN_PROGRESS and len(run.journal.totals.answered) == run.batch.total:
                run.batch = self._batches.put(states.finalizing(run.batch, int(self._clock())))
            await self._finish(run)
        del self._runs[run.batch.id]
        self._metrics.ended.labels(run.batch.status.value).inc()
        counts = run.batch.counts
        log.info(
            "%s: %s, with %d of %d lines answered", run.batch.id, run.batch.status, counts.completed, run.batch.total
        )

    def _check(self, batch: Batch) -> Checked:
        content = self.files.content(batch.input_file_id)
        if not content.exists():
            return Checked(0, "", (Problem("file_not_found", "the input file was removed", None, "input_file_id"),))
        with content.open("rb") as stream:
            lines = bounded(stream, self._settings.max_line_bytes)
            return check(lines, batch.endpoint, self._settings.max_lines, self._settings.max_line_bytes)

    async def _send(self, run: Run) -> None:
        """Have the lines sent until they are over, or the batch is."""
        run.source = Source(run.batch.id, run.batch.client, self._unanswered(run))
        lane: LaneKey = (run.batch.service or self._scope(run.batch.client), run.batch.model)
        self._dispatcher.add(lane, run.source)
        try:
            await run.over.wait()
        finally:
            await self._dispatcher.remove(lane, run.source)

    def _unanswered(self, run: Run) -> Iterator[Line]:
        """Yield the lines of a checked file that have no answer yet."""
        answered = run.journal.totals.answered if run.journal is not None else frozenset()
        content = self.files.content(run.batch.input_file_id)
        if not content.exists():
            return
        with content.open("rb") as stream:
            for number, text in numbered(stream):
                if number not in answered:
                    yield parse(number, text, run.batch.endpoint, len(text))

    async def _post(self, source: Source, line: Line) -> Answer:
        batch = self._runs[source.batch_id].batch
        prefix = f"/{batch.service}" if batch.service else ""
        return await self._gateway_post(f"{prefix}{batch.endpoint}", line.body, batch.client)

    def _line_over(self, source: Source, line: Line, over: Over) -> None:
        run = self._runs[source.batch_id]
        usage = over.usage
        tokens = (usage.input, usage.cached, usage.output, usage.reasoning)
        row = Row(line.number, over.ok, msgspec.Raw(msgspec.json.encode(over.record)), tokens)
        if run.journal is not None and run.journal.append(row):
            self._metrics.lines.labels(run.batch.endpoint, "completed" if over.ok else "failed").inc()

    async def _finish(self, run: Run) -> None:
        """Write the batch's files. A process that is killed meanwhile writes them again, under the same names."""
        if run.journal is None:
            return
        await asyncio.to_thread(self._write_expired, run)
        output, error = await asyncio.to_thread(self._write_files, run, run.journal)
        totals, now = run.journal.totals, int(self._clock())
        run.journal.close()
        run.batch = self._batches.put(states.finished(run.batch, totals.counts, totals.usage, output, error, now))
        await asyncio.to_thread(self._batches.drop_journal, run.batch)

    def _write_expired(self, run: Run) -> None:
        if run.journal is None or run.batch.status is not Status.IN_PROGRESS:
            return
        for line in self._unanswered(run):
            record = msgspec.json.encode(expired(disk.new_id("batch_req"), line.custom_id))
            run.journal.append(Row(line.number, False, msgspec.Raw(record)))
            self._metrics.lines.labels(run.batch.endpoint, "failed").inc()

    def _write_files(self, run: Run, journal: Journal) -> tuple[str, str]:
        batch, now = run.batch, int(self._clock())
        longest = self._settings.retention_seconds
        seconds = min(batch.output_seconds or longest, longest)
        names = []
        for ok, kind in ((True, "output"), (False, "error")):
            name = f"file_{batch.id.removeprefix('batch_')}_{kind}"
            info = FileInfo(name, batch.client, f"{batch.id}_{kind}.jsonl", BATCH_OUTPUT, 0, now, now + seconds)
            names.append(name if self.files.write(info, journal.records(ok)) is not None else "")
        return names[0], names[1]
