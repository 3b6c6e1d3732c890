"""A real Prometheus, and a /metrics for it to scrape."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from pagefleet_local.assets import debian
from pagefleet_local.fleet.kubectl import until

READY_SECONDS = 60
Text = Callable[[], bytes]
Asked = Callable[[str], Awaitable[list[dict[str, Any]]]]


@asynccontextmanager
async def served(text: Text) -> AsyncIterator[int]:
    """Yield the port of a /metrics that answers `text`."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def prometheus(folder: Path, configuration: dict[str, Any]) -> AsyncIterator[Asked]:
    """Run a Prometheus, and yield a function that queries it once it is ready."""
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            debian.tool("prometheus"), "--config.file=prometheus.yaml", f"--web.listen-address={address}",
            "--storage.tsdb.path=data", cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            async with aiohttp.ClientSession() as session:

                async def ready() -> bool:
                    try:
                        async with session.get(f"http://{address}/-/ready") as response:
                            return response.status == 200
                    except aiohttp.ClientConnectionError:
                        return False

                async def asked(query: str) -> list[dict[str, Any]]:
                    async with session.get(f"http://{address}/api/v1/query", params={"query": query}) as response:
                        answer = json.loads(await response.text())
                    assert answer["status"] == "success", (query, answer)
                    series: list[dict[str, Any]] = answer["data"]["result"]
                    return series

                await until(ready, timeout=READY_SECONDS, what="Prometheus is ready")
                yield asked
        finally:
            process.kill()
            await process.wait()
