"""The routing sidecar as the process of its container. Protects that after SIGTERM it serves for as long as the engine takes
connections, because the engine drains and the sidecar carries its streams, and that it ends by itself then."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import aiohttp
import pytest
from support.gateway.fleet import until
from support.gateway.split_engines import VLLM, free_port


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def test_it_ends_after_the_engine(stack: AsyncExitStack) -> None:
    engine, port = VLLM("127.0.0.1", "a", gate=asyncio.Event()), free_port()
    await engine.start(stack)
    command = ["-m", "pagefleet_sidecar.main", "--revision=a", f"--port={port}", f"--engine-port={engine.port}"]
    process = await asyncio.create_subprocess_exec(sys.executable, *command)
    http = await stack.enter_async_context(aiohttp.ClientSession())

    async def live() -> bool:
        try:
            async with http.get(f"http://127.0.0.1:{port}/routing-sidecar/healthz") as response:
                return response.status == 200
        except aiohttp.ClientConnectorError:
            return False

    async def ask() -> int:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        async with http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as response:
            return len(await response.read())

    try:
        await until(live)
        first = asyncio.create_task(ask())
        await until(lambda: len(engine.bodies) == 1)
        process.send_signal(signal.SIGTERM)
        second = asyncio.create_task(ask())  # gateways have not heard of the end yet
        await until(lambda: len(engine.bodies) == 2)
        assert process.returncode is None and engine.gate is not None
        engine.gate.set()
        assert await first and await second
        assert process.returncode is None
        await engine.die()
        assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
