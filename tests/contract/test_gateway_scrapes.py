"""The gateway's scraping of engines' metrics pages, over real HTTP. An engine is its tenant's program.

Protects that a service whose pods hang, redirect, inflate or fill their pages delays no other service's readings and costs
the event loop no more than its share of a round.
"""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiohttp import web
from support.gateway.fleet import until

from pagefleet_gateway.cluster import scrapes
from pagefleet_gateway.cluster.engines import engine_from
from pagefleet_gateway.cluster.readings import UNKNOWN, Readings, reading_in
from pagefleet_gateway.cluster.scrapes import MAX_BYTES, Limits, Scrapes
from pagefleet_gateway.cluster.state import Pod, State

PAGE = b"pagefleet_num_requests_running 1\npagefleet_num_requests_waiting 2\n"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class World:
    def __init__(self, stack: AsyncExitStack) -> None:
        self.state, self.readings = State(), Readings()
        self.requests: list[tuple[str, float]] = []  # pod, time
        self._stack = stack

    async def serve(self, answer: Answer) -> str:
        """Return the address of an engine with this answer. Pods may share it: they differ by name."""
        server = web.Server(answer)
        runner = web.ServerRunner(server, access_log=None, shutdown_timeout=1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"127.0.0.1:{runner.addresses[0][1]}"

    def pod(self, service: str, name: str, address: str) -> Pod:
        pod = Pod(name, name, "team", service, "aaaaaaaa", address)
        self.state.put_pod(pod)
        return pod

    def page(self, name: str, body: bytes = PAGE, **headers: str) -> Answer:
        async def answer(_: web.Request) -> web.Response:
            self.requests.append((name, time.monotonic()))
            return web.Response(body=body, headers={key.replace("_", "-"): value for key, value in headers.items()})

        return answer

    def times(self, name: str) -> list[float]:
        return [at for asked, at in self.requests if asked == name]


@asynccontextmanager
async def scraping(limits: Limits | None = None) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        world = World(stack)
        task = asyncio.create_task(Scrapes(world.state, world.readings, limits).follow())
        try:
            yield world
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def hanging() -> AsyncIterator[str]:
    """Yield the address of an engine that accepts requests and never answers."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.close()


async def test_a_service_whose_pods_hang_delays_no_other_ones_readings() -> None:
    async with hanging() as stuck, scraping() as world:
        for number in range(200):
            world.pod("stuck", f"s{number}", stuck)
        pod = world.pod("chat", "c", await world.serve(world.page("c")))
        await until(lambda: len(world.times("c")) >= 5)
        gaps = [after - before for before, after in zip(world.times("c"), world.times("c")[1:], strict=False)]
        assert max(gaps) < 2.0, "once a second, whatever the others do"
        assert world.readings.of(pod, time.monotonic()).waiting == 2


async def test_no_redirect_is_followed_and_no_compressed_or_endless_page_is_read() -> None:
    async with scraping() as world:
        secret = await world.serve(world.page("secret"))
        pods = [
            world.pod("a", "moved", await world.serve(_moved(f"http://{secret}/metrics"))),
            world.pod("b", "zip", await world.serve(world.page("zip", gzip.compress(PAGE), content_encoding="gzip"))),
            world.pod("c", "long", await world.serve(world.page("long", PAGE + b"x" * MAX_BYTES))),
        ]
        good = world.pod("d", "good", await world.serve(world.page("good")))
        await until(lambda: min(len(world.times(name)) for name in ("zip", "long", "good")) >= 2)
        assert world.times("secret") == []
        assert [world.readings.of(pod, time.monotonic()) for pod in pods] == [UNKNOWN] * 3
        assert world.readings.of(good, time.monotonic()).running == 1


def _moved(target: str) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"location": target})

    return answer


async def test_pods_that_a_round_had_no_bytes_for_come_first_in_the_next() -> None:
    size = 10_000
    async with scraping(Limits(requests=1, size=3 * size)) as world:
        for number in range(8):
            name = f"p{number}"
            world.pod("chat", name, await world.serve(world.page(name, PAGE.ljust(size, b"\n"))))
        await until(lambda: len({name for name, _ in world.requests}) == 8)
        assert len(world.requests) <= 10, "no pod waits while others are read again and again"


SELECTED = '{"port": 8000, "metrics": {"running": "r{x=\\"1\\"}", "waiting": "w{x}", "kvUsage": "u"}}'


@pytest.mark.parametrize(
    "page",
    [
        (b"r{" + b'x="1",' * 10_000 + b"\n") * 16,  # searches that backtrack take hours here
        b"r{" + b'x="1",' * 170_000,
        (b"w{" + b',x="' * 14_000 + b"\n") * 16,
        b"pagefleet_num_requests_running{" + b'"' * 1_000_000,
        b"\n" * MAX_BYTES + b"x",
        (b"pagefleet_num_requests_running" + b" " * 60_000 + b"x\n") * 16,
        (b"vllm:num_requests_waiting 1\n") * 37_000,
        (b"vllm:lora_requests_info{" + b'running_lora_adapters="' * 2_000 + b"\n") * 22,
    ],
)
@pytest.mark.parametrize("engine", ["", SELECTED])
def test_the_worst_page_costs_milliseconds(page: bytes, engine: str) -> None:
    assert len(page) <= MAX_BYTES + 1
    description = engine_from(engine)
    before = time.thread_time()
    reading_in(page, description)
    assert time.thread_time() - before < 0.05, "of a core of a busy machine: it is a few milliseconds of an idle one's"


async def test_pods_of_many_services_are_asked_one_after_another_and_not_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scrapes, "PER_SECOND", 100)
    async with scraping() as world:
        address = await world.serve(world.page("any"))
        pods = [world.pod(f"s{number}", f"p{number}", address) for number in range(150)]
        await until(lambda: all(world.readings.of(pod, time.monotonic()) is not UNKNOWN for pod in pods))
        times = world.times("any")
        assert times[149] - times[0] > 1.2, "150 at 100 a second"
