"""What the routing sidecar of a decode pod costs: streams through it beside the same streams without it.

    python bench/routing_sidecar.py [--streams 32] [--tokens 200] [--rate 40] [--json FILE]

An engine's stub sends `tokens` events to each of `streams` clients at `rate` a second, in a process of its own; so runs the sidecar. The
program prints the first event's median time with and without the sidecar, and the sidecar's processor time for each event. About 20 s.
Everything shares the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1790000000,"model":"llama","choices":'
    b'[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n'
)
ROUNDS = 3


def engine(port: int, tokens: int, pause: float) -> None:
    async def chat(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(tokens):
            await response.write(EVENT)
            await asyncio.sleep(pause)
        return response

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", chat)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()

    asyncio.run(serve())


async def listening(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


async def first_events(port: int, streams: int) -> list[float]:
    """Return the seconds to the first event of each stream, after all streams have ended."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def one() -> float:
            began = time.perf_counter()
            async with http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json={"messages": []}) as response:
                await response.content.readany()
                first = time.perf_counter() - began
                async for _ in response.content.iter_any():
                    pass
            return first

        return list(await asyncio.gather(*(one() for _ in range(streams))))


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def measured(streams: int, tokens: int, sidecar: int, ports: tuple[int, int]) -> dict[str, Any]:
    own, through = ports
    await asyncio.gather(*map(listening, ports))
    direct, passed, used = list[float](), list[float](), 0.0
    for _ in range(ROUNDS):
        direct += await first_events(own, streams)
        before = processor_seconds(sidecar)
        passed += await first_events(through, streams)
        used += processor_seconds(sidecar) - before
    return {
        "streams": streams,
        "first_event_ms": {"direct": statistics.median(direct) * 1e3, "sidecar": statistics.median(passed) * 1e3},
        "processor_us_per_event": used / (ROUNDS * streams * tokens) * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rate", type=float, default=40.0, help="events a second of each stream")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    own, through = free_port(), free_port()
    server = multiprocessing.Process(target=engine, args=(own, arguments.tokens, 1 / arguments.rate), daemon=True)
    server.start()
    command = ["-m", "pagefleet_sidecar.main", "--revision=bench", f"--port={through}", f"--engine-port={own}"]
    sidecar = subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL)
    try:
        rows = [
            asyncio.run(measured(streams, arguments.tokens, sidecar.pid, (own, through)))
            for streams in arguments.streams
        ]
    finally:
        server.terminate()
        sidecar.kill()
        sidecar.wait()
    for row in rows:
        times = row["first_event_ms"]
        print(
            f"{row['streams']:>4} streams: first event {times['direct']:.1f} ms direct, {times['sidecar']:.1f} ms through the sidecar; "
            f"{row['processor_us_per_event']:.0f} us of processor time an event"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
