"""Protects clusters whose pods have IPv6 addresses first: the operator answers on both families, and reads engines and fetching containers
at an IPv6 address; engines that it starts there listen on both, and a routing
sidecar asks its engine on the family that it takes."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web
from support.golden_manifests import child_of, spec_of

from pagefleet_contract.addresses import EVERY, EVERY_IPV4
from pagefleet_contract.engine_metrics import OURS, Engine
from pagefleet_fetch import progress
from pagefleet_fetch.progress import Meter
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.metrics.accounts import unlimited
from pagefleet_operator.metrics.engine_readings import EngineReading, EngineReadings
from pagefleet_operator.web.own_metrics import Metrics
from pagefleet_operator.web.server import Server
from pagefleet_sidecar.main import listening
from pagefleet_sidecar.proxy import Proxy, Settings

ADDRESS = "::1"
PAGE = "pagefleet_num_requests_waiting 3\npagefleet_num_requests_running 1\n"
PAGE += "pagefleet_kv_pages 10\npagefleet_kv_pages_free 5\npagefleet_kv_pages_cached 1\n"


async def test_the_operator_answers_both_families() -> None:
    async def alerts(_: web.Request) -> web.Response:
        return web.Response()

    runner = await Server(Metrics(), alerts, lambda: True).start(0)
    try:
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession() as session:
            for host in ("127.0.0.1", f"[{ADDRESS}]"):
                async with session.get(f"http://{host}:{port}/readyz") as answer:
                    assert answer.status == 200
    finally:
        await runner.cleanup()


async def test_an_engine_is_read_at_its_ipv6_address() -> None:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=PAGE)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, ADDRESS, 0).start()
    try:
        engine = Engine(port=runner.addresses[0][1], metrics=OURS)
        async with aiohttp.ClientSession() as session:
            reading = await EngineReadings(session).read(ADDRESS, engine)
        assert isinstance(reading, EngineReading)
        assert (reading.load.waiting, reading.load.running) == (3, 1)
    finally:
        await runner.cleanup()


async def test_the_progress_of_a_fetch_is_read_at_both_families() -> None:
    meter = Meter()
    meter.begin(100, lambda: 40)
    server = progress.serve(meter, 0)
    try:
        async with aiohttp.ClientSession() as session:
            for address in ("127.0.0.1", ADDRESS):
                port = server.server_address[1]
                assert await EngineReadings(session).fetching(address, port, unlimited()) is not None
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("name", ["minimal", "full", "vllm", "sglang", "tgi"])
def test_an_engine_listens_on_the_addresses_that_pods_have(name: str) -> None:
    child = child_of(spec_of(name))
    for address in (EVERY_IPV4, EVERY):
        pod = deployment(replace(child, address=address), 1)["spec"]["template"]["spec"]
        hosts = [one for one in pod["containers"][0]["args"] if one.startswith(("--host=", "--hostname="))]
        assert [one.partition("=")[2] for one in hosts] == [address]


@pytest.mark.parametrize("host", [EVERY, EVERY_IPV4, "127.0.0.1", ADDRESS])
async def test_the_sidecar_finds_its_engine_on_either_family(host: str) -> None:
    """A server of asyncio takes IPv6 alone on `::`, as SGLang's does: the sidecar asked 127.0.0.1 and every request was cut."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=request.path)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, host, 0).start()
    proxy = Proxy(Settings("a", runner.addresses[0][1], 1.0))
    try:
        async with listening(proxy, "127.0.0.1", 0) as port, aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/v1/models") as response:
                assert (response.status, await response.text()) == (200, "/v1/models")
            assert await proxy.engine_listens()
    finally:
        await runner.cleanup()
    assert not await proxy.engine_listens()
