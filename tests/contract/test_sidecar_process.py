"""The routing sidecar as the process of its container. Protects that after SIGTERM it serves for as long as the engine takes
connections, because the engine drains and the sidecar carries its streams, and that it ends by itself then. And that the operator writes a
command line that the program takes, with a program that the package installs."""

from __future__ import annotations

import asyncio
import signal
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from support.gateway.fleet import until
from support.gateway.split_engines import VLLM, free_port
from support.golden_manifests import child_of, spec_of

from pagefleet_contract.disaggregation import SIDECAR, SIDECAR_LIVE_PATH
from pagefleet_contract.names import ENGINE_PORT, SIDECAR_ENGINE_PORT
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_sidecar.main import parser

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def test_the_operator_starts_it_as_it_is() -> None:
    engine, sidecar = deployment(child_of(spec_of("disaggregated")), 1)["spec"]["template"]["spec"]["containers"]
    scripts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["scripts"]
    assert sidecar["name"] == SIDECAR and scripts[sidecar["command"][0]] == "pagefleet_sidecar.main:run"
    given = parser().parse_args(sidecar["args"])
    assert (given.prefill_timeout, given.port, given.engine_port) == (20.0, ENGINE_PORT, SIDECAR_ENGINE_PORT)
    assert f"--port={given.engine_port}" in engine["args"]
    assert sidecar["ports"][0] == {"name": "http", "containerPort": given.port, "protocol": "TCP"}


async def test_it_ends_after_the_engine(stack: AsyncExitStack) -> None:
    engine, port = VLLM("127.0.0.1", "a", gate=asyncio.Event()), free_port()
    await engine.start(stack)
    command = ["-m", "pagefleet_sidecar.main", "--revision=a", f"--port={port}", f"--engine-port={engine.port}"]
    process = await asyncio.create_subprocess_exec(sys.executable, *command)
    http = await stack.enter_async_context(aiohttp.ClientSession())

    async def live() -> bool:
        try:
            async with http.get(f"http://127.0.0.1:{port}{SIDECAR_LIVE_PATH}") as response:
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
