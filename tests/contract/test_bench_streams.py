"""The reader of `bench/gateway.py streams` believes no answer: it counts every event, and what is wrong with the others."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # bench is no installed package

from bench.gatewaybench import streams

COUNT, SECONDS = 12, 0.5
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


@pytest.fixture(autouse=True)
def _built(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "CACHE", tmp_path_factory.getbasetemp())  # compiled once for all of them


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[int]:
    """Run a server that sends this answer and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def read(port: int) -> Mapping[str, object]:
    return await asyncio.to_thread(streams.read, (port,), "/v1/completions", COUNT, SECONDS)


def test_streams_past_all_systems_are_whole_and_spread_over_the_engines() -> None:
    ports = free_ports(3)
    with streams.engines(ports):
        result = streams.read(ports, "/v1/completions", COUNT, SECONDS)
    assert (result["answered"], result["failed"], result["unanswered"]) == (COUNT, 0, 0)
    assert result["throughout"] == COUNT
    expected = COUNT * SECONDS / streams.INTERVAL
    assert 0.8 * expected <= float(str(result["events"])) <= 1.2 * expected


async def test_an_answer_that_lacks_events_is_a_failure() -> None:
    async with answering(HEAD + b"9\r\ndata: a\n\n\r\n" + DONE) as port:
        result = await read(port)
    assert (result["answered"], result["statuses"]) == (0, {"events missing": COUNT})


async def test_a_refusal_and_an_answer_cut_off_are_told_apart() -> None:
    async with answering(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n") as port:
        assert (await read(port))["statuses"] == {"503": COUNT}
    async with answering(HEAD + b"9\r\ndata: a\n\n\r\n") as port:
        assert (await read(port))["statuses"] == {"cut off": COUNT}


def test_the_program_is_made_again_only_when_its_sources_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = streams.program()
    made = first.stat().st_mtime_ns
    assert streams.program() == first and first.stat().st_mtime_ns == made
    changed = tmp_path / "wire"
    changed.mkdir()
    for file in streams.SOURCES.iterdir():
        (changed / file.name).write_bytes(file.read_bytes() + b"// changed\n")
    monkeypatch.setattr(streams, "SOURCES", changed)
    assert streams.program() != first
