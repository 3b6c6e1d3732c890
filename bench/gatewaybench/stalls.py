"""How long the picking loop is not free, beside the worst that scrapers, clients and engines can send: a real gateway with its
Envoy, 500 services of two revisions.

A beat of the loop each millisecond measures it: `stall` is the processor time that the loop's thread used between two beats,
which a pick would have waited for. It does not count other work of the machine. `late` is the same in wall time, and does.
Scrapers and engines are processes of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL

import uvloop

from pagefleet_gateway.app import Gateway
from pagefleet_gateway.cluster.engines import Engine
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.log_writer import LogWriter
from pagefleet_gateway.measuring.access_log import LogLine
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.settings import Settings

SERVICES, REVISIONS = 500, ("aaaaaaaa", "bbbbbbbb")
SIZE = 4 * 1024 * 1024
PAGE_BYTES = 1024 * 1024
BEAT_SECONDS = 0.001
SCRAPER = """
import sys, time, urllib.request
for _ in range(int(sys.argv[2])):
    began = time.monotonic()
    page = urllib.request.urlopen(sys.argv[1]).read()
    assert page.endswith(b"\\n")
"""
ENGINE = """
import asyncio, sys
page = {page}
answer = b"HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(page) + page
async def serve(reader, writer):
    try:
        while await reader.readuntil(b"\\r\\n\\r\\n"):
            writer.write(answer)
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
# As Python, for the engine's process: pages on which a search that backtracks takes hours, and the largest that is read.
PAGES = {
    "open labels": '(b"pagefleet_num_requests_running{" + b\'a="b",\' * 9000 + b"\\n") * 18',
    "series": '(b"pagefleet_num_requests_running{" + b\'a="b",\' * 600 + b\'a="b"} 1\\n\') * 250',
}


def body(field_name: bytes, start: bytes, repeated: bytes, end: bytes) -> bytes:
    head = b'{"model": "m0", "%s": ' % field_name + start
    return head + repeated * ((SIZE - 200) // len(repeated)) + end + b"}"


BODIES = {
    "empty tools": body(b"tools", b"[", b"{},", b"{}]"),
    "empty messages": body(b"messages", b"[", b"{},", b"{}]"),
    "token ids": body(b"prompt", b"[", b"1,", b"1]"),
    "text": body(b"prompt", b'"', b"a word, and ", b'"'),
}


@dataclass
class Beats:
    """The longest times between two beats, in seconds."""

    stall: float = 0.0
    late: float = 0.0
    beats: int = 0
    _task: asyncio.Task[None] | None = field(default=None, repr=False)

    async def __aenter__(self) -> Beats:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            used, at = time.thread_time(), time.monotonic()
            await asyncio.sleep(BEAT_SECONDS)
            self.stall = max(self.stall, time.thread_time() - used)
            self.late = max(self.late, time.monotonic() - at - BEAT_SECONDS)
            self.beats += 1

    def figures(self) -> dict[str, float]:
        return {"stall": round(self.stall * 1e3, 2), "late": round(self.late * 1e3, 2), "beats": self.beats}


def stalls(quick: bool) -> dict[str, object]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_stalls(quick))


async def _stalls(quick: bool) -> dict[str, object]:
    figures: dict[str, object] = {}
    async with _gateway() as gateway:
        await _fill(gateway)
        figures["sweeps"] = await _beside(lambda: asyncio.sleep(7.0))  # slices close, what is gone is forgotten
        figures["scrape"] = await _beside(lambda: _scrapes(gateway, 3 if quick else 20))
        for name, text in BODIES.items():
            figures[f"body: {name}"] = await _beside(lambda text=text: _picks(gateway, text, 3 if quick else 20))
        for name, page in PAGES.items():
            async with _engines(gateway, page):
                figures[f"pages: {name}"] = await _beside(lambda: asyncio.sleep(3.0 if quick else 15.0))
        figures["log: stalled reader"] = await _beside(lambda: _stalled_log(20_000))
    return figures


async def _beside(work: Callable[[], Awaitable[object]]) -> dict[str, float]:
    async with Beats() as beats:
        await asyncio.sleep(0.05)
        await work()
        await asyncio.sleep(0.05)  # a beat after the work's last step
    return beats.figures()


@asynccontextmanager
async def _gateway() -> AsyncIterator[Gateway]:
    state = State()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(port=0, internal_port=0, address="127.0.0.1", settle_seconds=0.0, temporary=Path(folder))
        gateway = Gateway(settings, state, lambda _: None)
        try:
            await gateway.start()
            yield gateway
        finally:
            await gateway.close()


async def _fill(gateway: Gateway) -> None:
    """Give every service a request of each revision, so that every series of the metrics page is there."""
    unscraped = Engine(scraped=False)
    state = gateway.state
    for number in range(SERVICES):
        name = f"s{number}"
        state.put_service(Service("bench", name, f"m{number}", tuple((revision, 50) for revision in REVISIONS)))
        for place, revision in enumerate(REVISIONS):
            address = f"127.1.{number // 250}.{2 * (number % 125) + place + 1}:9"
            state.put_pod(Pod(f"{name}-{revision}", name, "bench", name, revision, address, engine=unscraped))
    async with asyncio.timeout(60):
        while len(state.snapshot.pods) < SERVICES:
            await asyncio.sleep(0.05)
    for number in range(SERVICES):
        for _ in REVISIONS:
            await _pick(gateway, f"/bench/s{number}/v1/completions", b'{"prompt": "x", "stream": true}')


async def _pick(gateway: Gateway, path: str, text: bytes) -> None:
    """One request as a front sees it: its decision, and its end."""
    request = Request(os.urandom(8).hex(), "POST", path, {}, bytes(bytearray(text)))
    decision = gateway._decide(request)
    if isinstance(decision, asyncio.Future):
        decision = await decision
    if not isinstance(decision, Pick):
        raise RuntimeError(f"a request was refused: {decision}")
    upstream = decision.choices[0].address
    line = LogLine(request.id, time.time(), 200, frozenset(), 0.1, 0.2, 1, upstream, True, {"id": request.id})
    gateway._complete(line)


async def _picks(gateway: Gateway, text: bytes, count: int) -> None:
    for _ in range(count):
        await _pick(gateway, "/v1/completions", text)
        await asyncio.sleep(0.02)


async def _scrapes(gateway: Gateway, count: int) -> None:
    url = f"http://127.0.0.1:{gateway.internal_port}/metrics"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SCRAPER, url, str(count))
    if await process.wait():
        raise RuntimeError("the scraper failed")


@asynccontextmanager
async def _engines(gateway: Gateway, page: str) -> AsyncIterator[None]:
    """A service of 64 pods whose engine answers with `page`, in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ENGINE.format(page=page), stdout=asyncio.subprocess.PIPE, stderr=DEVNULL
    )
    try:
        if process.stdout is None:
            raise RuntimeError("the engine's stdout is no pipe")
        port = int(await process.stdout.readline())
        for number in range(64):
            gateway.state.put_pod(Pod(f"w{number}", f"w{number}", "bench", "worst", "a", f"127.0.0.1:{port}"))
        yield
    finally:
        for number in range(64):
            gateway.state.remove_pod(f"w{number}")
        process.kill()
        await process.wait()


async def _stalled_log(lines: int) -> None:
    """Write lines to a pipe that nobody reads."""
    reader, writer = os.pipe()
    log = LogWriter(writer)
    for number in range(lines):
        log.write(b"x" * 1000 + b"\n")
        if number % 20 == 0:
            await asyncio.sleep(0)
    os.close(reader)  # ends the thread's write
    await asyncio.to_thread(log.close, 5.0)
    os.close(writer)
