"""Runs a benchmark: sends every request at its time, however late the answers are (open loop), and gathers the samples."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from pagefleet_cli.bench.profile import Planned
from pagefleet_cli.bench.requests import Endpoint, Sample, monotonic, send

CONNECT_SECONDS = 10.0
Progress = Callable[[int, int], None]  # (ended, in flight)


@dataclass(frozen=True)
class Run:
    """`seconds` from the first intended start to the last answer. `cut`: ended before every request was sent. `failed_endpoints` are those
    that were checked before and failed, with the cause."""

    samples: tuple[Sample, ...]
    seconds: float
    cut: bool = False
    failed_endpoints: Mapping[str, str] = field(default_factory=dict)


def client(timeout: float) -> aiohttp.ClientSession:
    """Open a connection for each request: a request that waits for another's connection is no open loop."""
    limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, CONNECT_SECONDS))
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limits)


async def run(
    endpoint: Endpoint, planned: Sequence[Planned], timeout: float, stop: asyncio.Event, progress: Progress
) -> Run:
    """Send all of `planned`. `timeout`: seconds for one request from when it is sent.

    When `stop` is set no more requests are sent, and those in flight are cancelled; no sample counts them.
    """
    samples: list[Sample] = []
    async with client(timeout) as session:
        start, in_flight = monotonic(), set[asyncio.Task[None]]()

        async def one(entry: Planned) -> None:
            samples.append(await send(session, endpoint, entry, start + entry.at, monotonic))

        stopping = asyncio.create_task(stop.wait())
        try:
            for entry in planned:
                await asyncio.wait({stopping}, timeout=max(0.0, start + entry.at - monotonic()))
                if stop.is_set():
                    break
                task = asyncio.create_task(one(entry))
                in_flight.add(task)
                task.add_done_callback(in_flight.discard)
                progress(len(samples), len(in_flight))
            while in_flight and not stop.is_set():
                await asyncio.wait({stopping, *in_flight}, return_when=asyncio.FIRST_COMPLETED)
                progress(len(samples), len(in_flight))
            seconds = monotonic() - start
        finally:
            leftover: list[asyncio.Task[Any]] = [stopping, *in_flight]
            for task in leftover:
                task.cancel()
            await asyncio.gather(*leftover, return_exceptions=True)
    return Run(tuple(sorted(samples, key=lambda sample: sample.at)), seconds, len(samples) < len(planned))
