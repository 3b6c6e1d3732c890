"""Protects that a write of an operator that loses its Lease is not carried out: it is over within the time that is left of the
Lease, and it does not go out when the Lease is lost while it waits for a connection. A real HTTP server as API server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from support.gateway.fleet import until

from pagefleet_operator.kube.client import MAX_CONNECTIONS, Api
from pagefleet_operator.kube.leader_election import Leadership, NotLeaderError
from pagefleet_operator.kube.lease import LEASE_SECONDS, MARGIN_SECONDS

PATH = "/api/v1/namespaces/team/configmaps/one"
BODY = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}


@dataclass
class Server:
    """An API server that answers when it is released."""

    released: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0
    left: int = 0
    writes: list[str] = field(default_factory=list)  # methods of the requests whose body is whole

    async def lease(self, request: web.Request) -> web.Response:
        """Answer for a Lease at once: there is none yet."""
        if request.method == "GET":
            return web.json_response({"kind": "Status"}, status=404)
        self.writes.append(request.method)
        return web.json_response({"metadata": {"resourceVersion": "1"}})

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        if request.method != "GET":
            json.loads(await request.read())
            self.writes.append(request.method)
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        return web.json_response(BODY)


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def api(server: Server, tmp_path: Path) -> AsyncIterator[Api]:
    application = web.Application()
    application.router.add_route("*", "/apis/coordination.k8s.io/{path:.*}", server.lease)
    application.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(application, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    named = {"cluster": "one", "user": "one"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "one", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}],
        "users": [{"name": "one", "user": {}}],
        "contexts": [{"name": "one", "context": named}],
        "current-context": "one",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    async with Api(str(tmp_path / "kubeconfig")) as api:
        yield api
    server.released.set()
    await runner.cleanup()


WRITES = {
    "PATCH": lambda api: api.apply(PATH, BODY, "test"),
    "PUT": lambda api: api.replace(PATH, BODY),
    "POST": lambda api: api.create(PATH, BODY),
    "DELETE": lambda api: api.delete(PATH, "uid"),
}


@pytest.mark.parametrize("method", WRITES)
async def test_a_write_is_over_when_the_lease_is(server: Server, api: Api, method: str) -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await WRITES[method](api.fenced(lambda: 0.3))
    assert time.monotonic() - began < 5.0 and server.writes == [method]
    await until(lambda: server.left == 1)  # the connection is closed: an API server stops carrying it out


@pytest.mark.parametrize("method", WRITES)
async def test_a_write_that_waits_for_a_connection_does_not_go_out_after_the_lease(
    server: Server, api: Api, method: str
) -> None:
    leads, allowed = True, asyncio.Event()

    def fence() -> float:
        if not leads:
            raise NotLeaderError
        allowed.set()
        return 60.0

    reads = [asyncio.create_task(api.get(PATH)) for _ in range(MAX_CONNECTIONS)]
    await until(lambda: server.asked == MAX_CONNECTIONS)
    write = asyncio.create_task(WRITES[method](api.fenced(fence)))
    await allowed.wait()
    leads = False
    server.released.set()
    assert await asyncio.gather(*reads) == [BODY] * MAX_CONNECTIONS
    with pytest.raises(aiohttp.ClientConnectionError):
        await write
    assert server.writes == []


async def test_a_write_is_refused_without_the_lease_and_a_read_is_not(server: Server, api: Api) -> None:
    server.released.set()
    follower = Leadership(api, "system", "lease", "me")
    fenced = api.fenced(follower.check)
    with pytest.raises(NotLeaderError, match="me does not hold the lease system/lease"):
        await fenced.replace(PATH, BODY)
    assert await fenced.get(PATH) == BODY
    assert await api.replace(PATH, BODY) == BODY  # the Lease itself is written like this
    assert await api.fenced(Leadership(api, "system", "", "me").check).replace(PATH, BODY) == BODY


async def test_the_time_for_a_write_is_what_is_left_of_the_lease(server: Server, api: Api) -> None:
    server.released.set()
    leader = Leadership(api, "system", "lease", "me")
    began = time.monotonic()
    leader._renewed = began - 4.0
    seconds = leader.check()
    assert LEASE_SECONDS - 4.0 - (time.monotonic() - began) <= seconds + 1e-6
    assert seconds <= LEASE_SECONDS - 4.0 + 1e-6


async def test_the_lease_is_renewed_while_every_other_request_hangs(server: Server, api: Api) -> None:
    """As many decisions as there are connections wait for an admission webhook: the operator lost its Lease and ended, and so did the
    one that took over."""
    leader = Leadership(api, "system", "lease", "me")
    reads = [asyncio.create_task(api.get(PATH)) for _ in range(MAX_CONNECTIONS)]
    await until(lambda: server.asked == MAX_CONNECTIONS)
    leading = asyncio.create_task(leader.run())
    async with asyncio.timeout(LEASE_SECONDS - MARGIN_SECONDS):
        await leader.leads.wait()
    assert server.writes == ["POST"]
    for task in (leading, *reads):
        task.cancel()
    await asyncio.gather(leading, *reads, return_exceptions=True)
