"""A batches server before a gateway under test, in this process or as a process of its own, and OpenAI's client. No test here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from openai import AsyncOpenAI
from openai.types import Batch
from support.engine.api_process import free_port
from support.gateway.fleet import Fleet, running, until

from pagefleet_batches.main import Server
from pagefleet_batches.settings import Settings

ENDED = {"failed", "completed", "expired", "cancelled"}


def line(number: int, **body: object) -> dict[str, object]:
    asked = {"model": "smol", "messages": [{"role": "user", "content": f"question {number}"}], "max_tokens": 8}
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": asked | body}


def jsonl(lines: Iterable[object]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


@dataclass
class Desk:
    """What a client needs: OpenAI's client at the gateway, and the fleet behind it."""

    fleet: Fleet
    settings: Settings
    stack: AsyncExitStack
    server: Server | None = None
    process: asyncio.subprocess.Process | None = None

    def client(self, key: str = "none", path: str = "") -> AsyncOpenAI:
        client = AsyncOpenAI(api_key=key, base_url=f"{self.fleet.url}{path}/v1", max_retries=0)
        self.stack.push_async_callback(client.close)
        return client

    async def submit(self, client: AsyncOpenAI, lines: Iterable[object], **options: Any) -> Batch:
        file = await client.files.create(file=("lines.jsonl", jsonl(lines)), purpose="batch")
        return await client.batches.create(
            input_file_id=file.id, **{"endpoint": "/v1/chat/completions", "completion_window": "24h", **options}
        )

    async def ended(self, client: AsyncOpenAI, batch: Batch, seconds: float = 60.0) -> Batch:
        """Ask until the batch has ended."""
        found = [batch]

        async def over() -> bool:
            found[0] = await client.batches.retrieve(batch.id)
            return found[0].status in ENDED

        await until(over, seconds)
        return found[0]

    async def rows(self, client: AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        content = await client.files.content(file_id)
        return [json.loads(text) for text in content.text.splitlines()]

    async def start_server(self) -> None:
        """Start the server in this process, and wait until the gateway lets it work."""
        server = await self.stack.enter_async_context(Server(self.settings))
        self.server = server
        await until(lambda: not server.access.reason)

    async def start_process(self) -> None:
        """Start the server as the process that a pod runs."""
        settings = self.settings
        variables = {
            "PAGEFLEET_BATCHES_FOLDER": str(settings.folder),
            "PAGEFLEET_BATCHES_GATEWAY_URL": settings.gateway_url,
            "PAGEFLEET_BATCHES_ADDRESS": settings.address,
            "PAGEFLEET_BATCHES_PORT": str(settings.port),
            "PAGEFLEET_BATCHES_INTERNAL_PORT": str(settings.internal_port),
            "PAGEFLEET_BATCHES_MAX_IN_FLIGHT": str(settings.max_in_flight),
        }
        words = [sys.executable, "-c", "from pagefleet_batches.main import run; run()"]
        log = self.stack.enter_context((settings.folder.parent / "batches.log").open("a"))
        self.process = process = await asyncio.create_subprocess_exec(
            *words, env={**os.environ, **variables}, stdout=log, stderr=subprocess.STDOUT
        )
        self.stack.push_async_callback(self.kill, process)

        async def ready() -> bool:
            assert process.returncode is None, "the batches server ended at its start"
            with contextlib.suppress(aiohttp.ClientError):
                url = f"http://127.0.0.1:{settings.internal_port}/readyz"
                async with self.fleet.http.get(url) as response:
                    return response.status == 200
            return False

        await until(ready)

    async def kill(self, process: asyncio.subprocess.Process | None = None) -> None:
        """End the process as the kernel ends one that needs too much memory."""
        process = process or self.process
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def desk(folder: Path, *, gateway: dict[str, object] | None = None, **options: object) -> AsyncIterator[Desk]:
    """A gateway that knows a batches server, which is not started yet. `options`: of the server's settings."""
    port = free_port()
    async with running(batches=("127.0.0.1", port), **(gateway or {})) as fleet, AsyncExitStack() as stack:
        settings = Settings(
            folder=folder / "data",
            **{
                "gateway_url": fleet.url,
                "address": "127.0.0.1",
                "port": port,
                "internal_port": free_port(),
                "drain_seconds": 0.0,
                **options,
            },  # type: ignore[arg-type]
        )
        yield Desk(fleet, settings, stack)
