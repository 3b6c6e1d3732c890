"""The gateway as its container starts it: the console script, the watch protocol, SIGTERM.

Protects that what the API server says is in force at the next request, and that a watch survives what real
ones go through: 410 in either form, ERROR events, truncated JSON, a cut, a poisoned object, a server away. Protects also
that a gateway is not ready before it knows the cluster.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from support.gateway.watched_api import API, PODS, SERVICES

REVISION = "aaaaaaaa"


def service(weight: int, name: str = "chat") -> dict[str, object]:
    traffic = [{"revision": REVISION, "weight": weight}] if weight else []
    return {
        "metadata": {"name": name, "namespace": "team", "uid": name},
        "spec": {"model": {"servedName": name}},
        "status": {"traffic": traffic},
    }


def engine_pod(host: str, ready: bool) -> dict[str, object]:
    labels = {"pagefleet.io/service": "chat", "pagefleet.io/revision": REVISION}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"name": "chat-0", "namespace": "team", "uid": "chat-0", "labels": labels},
        "status": {"phase": "Running", "podIP": host, "conditions": conditions},
    }


@dataclass
class World:
    api: API
    process: asyncio.subprocess.Process
    http: aiohttp.ClientSession
    port: int
    internal: int

    async def status(self) -> int:
        url = f"http://127.0.0.1:{self.port}/team/chat/v1/models"
        async with self.http.get(url) as response:
            await response.read()
            return response.status

    async def ready(self) -> int:
        return (await self.readiness())[0]

    async def readiness(self) -> tuple[int, str]:
        """Return the status of /readyz and its text. The status is 0 while nobody listens."""
        try:
            async with self.http.get(f"http://127.0.0.1:{self.internal}/readyz") as response:
                return response.status, await response.text()
        except aiohttp.ClientError:
            return 0, ""


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.02)


async def models(_: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": []})


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        api = API()
        await api.start()
        stack.push_async_callback(api.stop)
        app = web.Application()
        app.router.add_get("/v1/models", models)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.77", 8000).start()
        kubeconfig = tmp_path / "kubeconfig"
        cluster = {"server": f"http://127.0.0.1:{api.port}"}
        kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": cluster}],
                    "users": [{"name": "u", "user": {"token": "t"}}],
                }
            )
        )
        port, internal = free_ports()
        variables = {
            "PAGEFLEET_KUBECONFIG": str(kubeconfig),
            "PAGEFLEET_GATEWAY_ADDRESS": "127.0.0.1",
            "PAGEFLEET_GATEWAY_PORT": str(port),
            "PAGEFLEET_GATEWAY_INTERNAL_PORT": str(internal),
            "PAGEFLEET_GATEWAY_SETTLE_SECONDS": "1",
            "TMPDIR": str(tmp_path),
        }
        errors = stack.enter_context((tmp_path / "stderr").open("w"))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from pagefleet_gateway.main import run; run()",
            env={**os.environ, **variables},
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )

        async def end() -> None:
            if process.returncode is None:
                process.terminate()  # not SIGKILL, which would leave its Envoy behind
                await asyncio.wait_for(process.communicate(), 60)

        stack.push_async_callback(end)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        world = World(api, process, http, port, internal)

        async def without_lists() -> bool:
            status, text = await world.readiness()
            assert status != 200, "ready before the API server has sent the first lists"
            return "first list" in text

        async def ready() -> bool:
            return await world.ready() == 200

        async with asyncio.timeout(60):
            while not await without_lists():  # asked without a pause: a probe may come at any moment
                pass
        api.listing.set()
        await until(ready, 60)
        yield world


async def test_from_the_watch_to_the_next_request_and_out(world: World) -> None:
    async def serving() -> bool:
        return await world.status() == 200

    async def refused() -> bool:
        return await world.status() == 503

    async def absent() -> bool:
        return await world.status() == 404

    services, pods = world.api.kinds[SERVICES], world.api.kinds[PODS]
    assert await world.status() == 404
    world.api.put(SERVICES, service(100), "ADDED")
    world.api.put(PODS, engine_pod("127.0.0.77", ready=False), "ADDED")
    await until(refused)
    world.api.put(PODS, engine_pod("127.0.0.77", ready=True))
    await until(serving)

    # Neighbours and nonsense change nothing.
    poisoned = {
        "metadata": {"name": "poison", "namespace": "team"},
        "spec": 3,
        "status": {"traffic": {"x": 1}},
    }
    world.api.put(SERVICES, poisoned, "ADDED")
    world.api.put(PODS, {"metadata": {"name": "poison", "uid": "poison"}, "status": None}, "ADDED")

    # Every way a watch breaks: the next edit still arrives.
    breaks: list[bytes | None] = [
        None,
        b'{"type": "MODIFIED", "obj',
        b'{"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}\n',
        b'{"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd"}}\n',
        b'["not an event"]\n',
    ]
    for index, data in enumerate(breaks):
        watches = services.watches
        services.gone = index % 2 == 0
        world.api.send_raw(services, data)
        if data is not None and not data.endswith(b"\n"):
            world.api.send_raw(services, None)

        async def again(before: int = watches) -> bool:
            return services.watches > before

        await until(again)
        world.api.put(SERVICES, service(0))
        await until(refused, 5)
        world.api.put(SERVICES, service(100))
        await until(serving, 5)
    assert services.lists >= 3

    # The API server goes away: the last word stays in force; the new list shows a deletion.
    await world.api.stop()
    for _ in range(5):
        assert await world.status() == 200
    del services.items["chat"]
    services.gone = True
    await world.api.start()
    await until(absent, 30)
    world.api.put(SERVICES, service(100), "ADDED")
    await until(serving, 30)
    assert pods.watches >= 1

    world.process.send_signal(signal.SIGTERM)

    async def unready() -> bool:
        return await world.ready() == 503

    await until(unready, 5)
    assert await world.status() == 200  # the Service still sends requests for a moment
    stdout, _ = await asyncio.wait_for(world.process.communicate(), 20)
    assert world.process.returncode == 0
    lines = [json.loads(line) for line in stdout.splitlines()]
    answered = [line for line in lines if line["code"] == 200]
    assert answered and all(
        (line["namespace"], line["service"], line["revision"]) == ("team", "chat", REVISION) for line in answered
    )


async def test_the_gateway_ends_when_envoy_does(world: World) -> None:
    children = children_of(world.process.pid)
    assert len(children) == 1
    os.kill(int(children[0]), signal.SIGKILL)
    await asyncio.wait_for(world.process.communicate(), 10)
    assert world.process.returncode == 1


async def test_a_picker_that_hangs_is_noticed_within_seconds(world: World) -> None:
    """Envoy then answers 503 at once, and asks the picker again as soon as it lives."""
    world.api.put(PODS, engine_pod("127.0.0.77", ready=True), "ADDED")
    world.api.put(SERVICES, service(100), "ADDED")

    async def answers(status: int) -> bool:
        try:
            async with asyncio.timeout(0.3):
                return await world.status() == status
        except TimeoutError:
            return False  # it waits in the picker

    await until(lambda: answers(200))
    os.kill(world.process.pid, signal.SIGSTOP)
    try:
        await until(lambda: answers(503), 5.0)
        assert await world.status() == 503
    finally:
        os.kill(world.process.pid, signal.SIGCONT)
    await until(lambda: answers(200))


async def test_a_wrong_setting_is_named() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from pagefleet_gateway.main import run; run()",
        env={**os.environ, "PAGEFLEET_GATEWAY_PORT": "eighty"},
        stderr=asyncio.subprocess.PIPE,
    )
    _, stderr = await process.communicate()
    assert process.returncode == 78 and b"PAGEFLEET_GATEWAY_PORT" in stderr
