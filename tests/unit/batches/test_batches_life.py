"""A batch's life in virtual time, with a gateway that is a function.

Protects that a batch which is not done when its window ends keeps its answers and names the other lines, also where the server
was down then; that files and batches go when their time is over, and none that is in use; and what the metrics count.
"""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import msgspec
from support.gateway.fleet import until

from pagefleet_batches.jobs.batch import Batch, Counts, Status
from pagefleet_batches.manager import Manager, Run
from pagefleet_batches.metrics import Metrics
from pagefleet_batches.sending.answers import Answer
from pagefleet_batches.settings import DAY, Settings
from pagefleet_batches.storage.batches import Batches
from pagefleet_batches.storage.files import FileInfo, Files
from pagefleet_batches.storage.journal import Journal, Row

START = 1_000_000.0
ENDPOINT = "/v1/completions"
ANSWER = Answer(200, b'{"usage":{"prompt_tokens":2,"completion_tokens":3}}')

Post = Callable[[str, bytes, str], Awaitable[Answer]]


class Clock:
    now = START

    def __call__(self) -> float:
        return self.now


def lines(count: int) -> bytes:
    return b"".join(
        json.dumps({"custom_id": f"n{number}", "method": "POST", "url": ENDPOINT, "body": {"model": "m", "n": number}}).encode()
        + b"\n"
        for number in range(count)
    )  # fmt: skip


async def first_five(_: str, body: bytes, __: str) -> Answer:
    """Answer five lines, and no other one ever."""
    if json.loads(body)["n"] >= 5:
        await asyncio.Event().wait()
    return ANSWER


@asynccontextmanager
async def managed(
    folder: Path, clock: Clock, post: Post, scope: Callable[[str], str] = lambda _: ""
) -> AsyncIterator[Manager]:
    settings = Settings(folder, drain_seconds=0.0)
    manager = Manager(settings, Files(folder), Batches(folder), post, Metrics(), clock=clock, scope=scope)
    manager.start()
    try:
        yield manager
        assert not manager.failed.done(), manager.failed.exception()
    finally:
        await manager.close()


def made(manager: Manager, clock: Clock, count: int, client: str = "one") -> Batch:
    now = int(clock())
    info = FileInfo(f"file_{count}", client, "a.jsonl", "batch", 0, now, now + 30 * DAY)
    file = manager.files.write(info, [lines(count)])
    assert file is not None
    return manager.create(client, "", ENDPOINT, file, {"completion_window": "24h"})


def current(manager: Manager, batch: Batch) -> Batch:
    found = manager.get(batch.client, batch.id)
    assert found is not None
    return found


def rows(manager: Manager, name: str) -> list[dict[str, object]]:
    return [json.loads(text) for text in manager.files.content(name).read_bytes().splitlines()]


def check_expired(manager: Manager, done: Batch) -> None:
    assert (done.counts.completed, done.counts.failed, done.total) == (5, 7, 12)
    assert {row["custom_id"] for row in rows(manager, done.output_file_id)} == {f"n{number}" for number in range(5)}
    late = rows(manager, done.error_file_id)
    assert {row["custom_id"] for row in late} == {f"n{number}" for number in range(5, 12)}
    assert all(row["response"] is None and row["error"]["code"] == "batch_expired" for row in late)  # type: ignore[index]


async def test_a_service_that_is_away_stops_no_client_for_whom_the_model_s_name_means_another(tmp_path: Path) -> None:
    refused: list[str] = []

    async def post(_: str, __: bytes, client: str) -> Answer:
        if client == "two":
            return ANSWER
        refused.append(client)
        return Answer(503, b"{}", 300.0)

    async with managed(tmp_path, Clock(), post, scope=lambda client: client) as manager:
        waiting = made(manager, Clock(), 5, "one")
        await until(lambda: len(refused) == 1)
        batch = made(manager, Clock(), 12, "two")
        await until(lambda: current(manager, batch).ended)
        assert current(manager, batch).counts == Counts(12, 0)
        assert current(manager, waiting).counts == Counts() and len(refused) == 1


async def test_the_window_s_end_keeps_the_answers_and_names_the_other_lines(tmp_path: Path) -> None:
    clock = Clock()
    async with managed(tmp_path, clock, first_five) as manager:
        batch = made(manager, clock, 12)
        await until(lambda: current(manager, batch).counts.completed == 5)
        clock.now = START + DAY - 1
        await manager.tick()
        assert current(manager, batch).status is Status.IN_PROGRESS
        clock.now = START + DAY
        await manager.tick()
        await until(lambda: current(manager, batch).ended)
        done = current(manager, batch)
        assert done.status is Status.EXPIRED and done.ended_at == START + DAY
        check_expired(manager, done)


async def test_a_server_that_was_down_at_the_window_s_end_sends_no_line_after_it(tmp_path: Path) -> None:
    clock = Clock()
    async with managed(tmp_path, clock, first_five) as manager:
        batch = made(manager, clock, 12)
        await until(lambda: current(manager, batch).counts.completed == 5)
    clock.now = START + DAY + 5
    sent: list[bytes] = []

    async def post(_: str, body: bytes, __: str) -> Answer:
        sent.append(body)
        return ANSWER

    async with managed(tmp_path, clock, post) as manager:
        await until(lambda: current(manager, batch).ended)
        assert current(manager, batch).status is Status.EXPIRED and not sent
        check_expired(manager, current(manager, batch))


async def test_a_line_in_flight_at_the_window_s_end_is_named_although_no_other_is_left_to_send(tmp_path: Path) -> None:
    clock, sent = Clock(), list[bytes]()

    async def post(path: str, body: bytes, client: str) -> Answer:
        sent.append(body)
        return await first_five(path, body, client)

    async with managed(tmp_path, clock, post) as manager:
        batch = made(manager, clock, 6)
        await until(lambda: len(sent) == 6)
        clock.now = START + DAY
        await manager.tick()
        await until(lambda: current(manager, batch).ended)
        done = current(manager, batch)
        assert (done.status, done.counts) == (Status.EXPIRED, Counts(5, 1))
        assert [row["custom_id"] for row in rows(manager, done.error_file_id)] == ["n5"]


async def test_a_server_that_was_killed_after_the_last_answer_completes_the_batch_also_after_its_window(
    tmp_path: Path,
) -> None:
    batches, clock = Batches(tmp_path), Clock()
    batch = batches.put(Batch("batch_a", "one", "", ENDPOINT, "file_a", "24h", 0, 1, Status.IN_PROGRESS, total=2))
    with closing(batches.journal(batch)) as journal:
        for number in (1, 2):
            journal.append(Row(number, True, msgspec.Raw(b"{}")))
    async with managed(tmp_path, clock, first_five) as manager:
        await until(lambda: current(manager, batch).ended)
        assert (current(manager, batch).status, current(manager, batch).counts) == (Status.COMPLETED, Counts(2, 0))


async def test_the_lines_of_an_expired_batch_are_not_in_memory_as_a_whole(tmp_path: Path) -> None:
    clock = Clock()
    async with managed(tmp_path, clock, first_five) as manager:
        long = lines(1).replace(b'"n": 0', b'"n": 9, "prompt": "' + b"x" * 1024 * 1024 + b'"')
        parts = [long.replace(b'"n0"', b'"n%d"' % number) for number in range(32)]
        file = manager.files.write(FileInfo("file_a", "", "a", "batch", 0, 0, 2_000_000), parts)
        assert file is not None
        run = Run(Batch("batch_a", "", "", ENDPOINT, file.id, "24h", 0, 1, Status.IN_PROGRESS), asyncio.Event())
        run.journal = Journal(tmp_path / "answers.jsonl")
        tracemalloc.start()
        manager._write_expired(run)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(run.journal.totals.answered) == 32 and peak < 16 * 1024 * 1024, peak
        run.journal.close()


async def test_files_and_batches_go_when_their_time_is_over(tmp_path: Path) -> None:
    clock = Clock()
    async with managed(tmp_path, clock, first_five) as manager:
        batch = made(manager, clock, 3)
        await until(lambda: current(manager, batch).ended)
        waiting = made(manager, clock, 12)
        await until(lambda: current(manager, waiting).counts.completed == 5)
        output = current(manager, batch).output_file_id
        clock.now = START + DAY - 1
        await manager.tick()
        assert {file.id for file in manager.files} == {"file_3", "file_12", output}
        clock.now = START + 30 * DAY
        for run in list(manager._active()):  # its window never ends here: it keeps its file in use
            run.batch = replace(run.batch, expires_at=10**12)
        await manager.tick()
        assert {file.id for file in manager.files} == {"file_12"}
        assert manager.get("one", batch.id) is None and manager.get("one", waiting.id) is not None


async def test_no_client_has_its_answers_kept_longer_than_the_server_keeps_files(tmp_path: Path) -> None:
    clock, settings = Clock(), Settings(tmp_path, retention_seconds=2 * DAY)
    manager = Manager(settings, Files(tmp_path), Batches(tmp_path), first_five, Metrics(), clock=clock)
    try:
        file = manager.files.write(FileInfo("file_a", "one", "a", "batch", 0, 0, 2_000_000), [lines(1)])
        assert file is not None
        for asked, kept in ((30 * DAY, 2 * DAY), (3600, 3600)):
            options = {"completion_window": "24h", "output_seconds": asked}
            batch = manager.create("one", "", ENDPOINT, file, options)
            await until(lambda batch=batch: current(manager, batch).ended)  # type: ignore[misc]
            output = manager.files.get("one", current(manager, batch).output_file_id)
            assert output is not None and output.expires_at == START + kept
    finally:
        await manager.close()


async def test_the_metrics_count_lines_batches_and_time(tmp_path: Path) -> None:
    clock, metrics = Clock(), Metrics()
    manager = Manager(
        Settings(tmp_path, drain_seconds=0.0), Files(tmp_path), Batches(tmp_path), first_five, metrics, clock=clock
    )
    try:
        done = made(manager, clock, 3)
        await until(lambda: current(manager, done).ended)
        batch = made(manager, clock, 12)
        await until(lambda: current(manager, batch).counts.completed == 5)
        clock.now = START + 3600
        await manager.tick()

        def value(name: str, **labels: str) -> float | None:
            return metrics.registry.get_sample_value(name, labels)

        assert value("pagefleet_batches_lines_total", endpoint=ENDPOINT, outcome="completed") == 8
        assert value("pagefleet_batches_ended_total", status="completed") == 1
        assert value("pagefleet_batches_requests_total", code="200") == 8
        assert (value("pagefleet_batches_active"), value("pagefleet_batches_lines_pending")) == (1, 7)
        assert 1 <= (value("pagefleet_batches_in_flight") or 0) <= (value("pagefleet_batches_concurrency_limit") or 0)
        assert value("pagefleet_batches_next_expiry_seconds") == DAY - 3600
    finally:
        await manager.close()


async def test_a_line_without_an_end_is_not_read_as_a_whole(tmp_path: Path) -> None:
    async with managed(tmp_path, Clock(), first_five) as manager:
        incoming = manager.files.incoming()
        incoming.write(b"x" * 64 * 1024 * 1024)
        file = manager.files.keep(incoming, FileInfo("file_a", "", "a", "batch", incoming.size, 0, 2_000_000))
        batch = Batch("batch_a", "", "", ENDPOINT, file.id, "24h", 0, 1)
        tracemalloc.start()
        found = manager._check(batch)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert [problem.code for problem in found.problems] == ["line_too_large"]
    assert peak < 32 * 1024 * 1024, peak
