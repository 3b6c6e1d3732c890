"""Protects the operator from the answers of tenants' pods, over real HTTP: no redirect is followed by any reader or writer and
it is a named failure, no compressed body is unpacked, a body is read up to its limit; a service that uses up its time is unread
by name and has time again later; a pod that misses an answer counts by its last reading for 15 s; the retained measurements of a
tenant's own pickers are bounded; and a pod is no gateway by its label alone."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from support.loopback import own_address

from pagefleet_contract.names import ENGINE_PORT, GATEWAY_INTERNAL_PORT
from pagefleet_operator.domain.scaling.load import sample
from pagefleet_operator.domain.status.observation import PodReading, RevisionReading
from pagefleet_operator.domain.status.plan import SpareOrder
from pagefleet_operator.kube import client, readings
from pagefleet_operator.kube.spares import SpareOrders
from pagefleet_operator.kube.store import Store
from pagefleet_operator.metrics import gateway_windows, metrics_page
from pagefleet_operator.metrics.accounts import (
    BASE_SECONDS,
    BYTE_SECONDS,
    MAX_ASKED,
    PERIOD_SECONDS,
    POD_SECONDS,
    TENANT_SECONDS,
    Accounts,
)
from pagefleet_operator.metrics.cumulative import Pod
from pagefleet_operator.metrics.engine_readings import EngineReading, EngineReadings, Unread
from pagefleet_operator.metrics.engine_windows import EngineWindows
from pagefleet_operator.metrics.fetching import FetchError, Question, fetch, measuring_session
from pagefleet_operator.metrics.gateway_windows import GatewayWindows, Own
from pagefleet_operator.metrics.prometheus_client import Prometheus
from pagefleet_operator.metrics.wake_ups import Wakes
from pagefleet_operator.observe import _loaded

ADDRESS, HOSTILE = own_address(0), own_address(1)
PAGE = "pagefleet_num_requests_waiting 1\npagefleet_num_requests_running 2\n"
PAGE += "pagefleet_kv_pages 10\npagefleet_kv_pages_free 5\npagefleet_kv_pages_cached 1\n"


@dataclass
class Pods:
    """A pod's address with the ports of an engine and of a gateway; `asked` has every path that was requested."""

    session: aiohttp.ClientSession
    asked: list[str] = field(default_factory=list)
    answer: Callable[[web.Request], web.Response] = lambda _: web.Response(text=PAGE)

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        return self.answer(request)


@pytest_asyncio.fixture
async def pods() -> AsyncIterator[Pods]:
    async with measuring_session() as session:
        served, app = Pods(session), web.Application()
        app.router.add_route("*", "/{path:.*}", served.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        for port in (ENGINE_PORT, GATEWAY_INTERNAL_PORT):
            await web.TCPSite(runner, ADDRESS, port).start()
        yield served
        await runner.cleanup()


def moved(status: int) -> Callable[[web.Request], web.Response]:
    headers = {"Location": f"http://{ADDRESS}:{ENGINE_PORT}/stolen"}
    return lambda request: web.Response(text=PAGE) if request.path == "/stolen" else web.Response(
        status=status, headers=headers
    )  # fmt: skip


async def engine(pods: Pods) -> str:
    reading = await EngineReadings(pods.session).read(ADDRESS)
    return reading.cause if isinstance(reading, Unread) else ""


async def engine_windows(pods: Pods) -> str:
    windows = EngineWindows(pods.session)
    await windows.read([Pod("chat-1", ADDRESS, "aaaa")], "ns", "chat")
    return windows.silence("ns", "chat")


async def gateway(pods: Pods) -> str:
    found = await GatewayWindows(pods.session).read([ADDRESS], "ns", "chat", judged=True)
    return "a redirect" if found is None else ""


async def wakes(pods: Pods) -> str:
    reader = Wakes(pods.session, lambda: asyncio.sleep(0, [ADDRESS]), lambda _: None)
    return "a redirect" if await reader._held(ADDRESS) == set() else ""


async def prometheus(pods: Pods) -> str:
    return (await Prometheus(pods.session, f"http://{ADDRESS}:{ENGINE_PORT}").ask("up", 1 << 20))[1]


async def spare(pods: Pods) -> str:
    answered = asyncio.Event()
    orders = SpareOrders(client.Api(None), Store(), pods.session, lambda: None, lambda _: answered.set())
    await orders.carry_out(("ns", "chat"), [SpareOrder("spare-1", ADDRESS, None, True)])
    await asyncio.gather(*orders._asking.values())
    return "" if answered.is_set() else "a redirect"


READERS: list[Callable[[Pods], Awaitable[str]]] = [engine, engine_windows, gateway, wakes, prometheus, spare]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
async def test_no_redirect_is_followed_and_it_is_a_named_failure(
    pods: Pods, read: Callable[[Pods], Awaitable[str]], status: int
) -> None:
    pods.answer = moved(status)
    assert "a redirect" in await read(pods)
    assert len(pods.asked) == 1 and "/stolen" not in pods.asked


async def test_the_api_server_s_redirect_is_an_error() -> None:
    """A redirect would carry the operator's token to another server."""
    api, asked = client.Api(None), list[str]()

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=302, headers={"Location": "/stolen"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, ADDRESS, 18235).start()
    try:
        async with aiohttp.ClientSession() as session:
            api._session, api._settings = session, client.client.Configuration(host=f"http://{ADDRESS}:18235")
            with pytest.raises(client.ApiError) as error:
                await api.get("/api/v1/pods")
    finally:
        await runner.cleanup()
    assert error.value.status == 302 and asked == ["/api/v1/pods"]


async def test_a_compressed_body_is_refused_and_nothing_is_unpacked(pods: Pods) -> None:
    bomb = gzip.compress(b"0" * (64 << 20))

    def answer(request: web.Request) -> web.Response:
        assert request.headers["Accept-Encoding"] == "identity"
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

    pods.answer = answer
    with pytest.raises(FetchError, match="compressed"):
        await fetch(pods.session, Question(f"http://{ADDRESS}:{ENGINE_PORT}/metrics", 2.0, 1 << 20))


async def test_a_body_has_the_limit_of_its_purpose(pods: Pods) -> None:
    for size, fits in ((1000, True), (1001, False)):
        pods.answer = lambda _, size=size: web.Response(text="x" * size)  # type: ignore[misc]
        question = Question(f"http://{ADDRESS}:{ENGINE_PORT}/metrics", 2.0, 1000)
        if fits:
            assert len(await fetch(pods.session, question)) == 1000
        else:
            with pytest.raises(FetchError, match="more than 1000 bytes"):
                await fetch(pods.session, question)


async def test_a_service_that_uses_up_its_time_is_unread_and_has_time_again(pods: Pods) -> None:
    now = [0.0]
    accounts = Accounts(lambda: now[0])
    account = accounts.open(("ns", "chat"), 1)
    assert account.time.left == pytest.approx(BASE_SECONDS + POD_SECONDS)
    engines = EngineReadings(pods.session)
    assert isinstance(await engines.read(ADDRESS, account=account), EngineReading)
    with account.spending():
        now[0] += 10 * BASE_SECONDS
    reader = EngineReadings(pods.session)
    reading = await reader.read(ADDRESS, account=account)
    assert isinstance(reading, Unread) and "of the operator's time" in reading.cause
    assert pods.asked == ["/metrics"], "it is not even asked"
    assert accounts.open(("others", "chat"), 1).overdrawn == "", "another tenant has its own time"
    now[0] += 12 * PERIOD_SECONDS
    assert accounts.open(("ns", "chat"), 1).overdrawn == ""
    reading = await EngineReadings(pods.session).read(ADDRESS, account=accounts.open(("ns", "chat"), 1))
    assert isinstance(reading, EngineReading)


async def test_a_replica_that_misses_an_answer_counts_by_its_last_reading(pods: Pods) -> None:
    """Of hundreds of replicas one misses an answer each minute. Without any reading of it, no replica would ever be removed."""
    now, pod = [100.0], PodReading("chat-1", True, False, 0.0, 10.0)
    engines = EngineReadings(pods.session, lambda: now[0])
    page = PAGE + "# TYPE pagefleet_generation_tokens_total counter\npagefleet_generation_tokens_total {}\n"
    pods.answer = lambda _: web.Response(text=page.format(500))
    first = await engines.read(ADDRESS)
    assert isinstance(first, EngineReading)
    pods.answer = lambda _: web.Response(status=503)
    for seconds in (5.0, 15.0):
        now[0] = 100.0 + seconds
        missed = _loaded(pod, await engines.read(ADDRESS))
        assert (missed.load, missed.load_age) == (first.load, seconds)
        assert "answers 503" in missed.load_error
        assert sample(RevisionReading("a", 1, (missed,)), now[0]).complete
    now[0] = 120.0
    missed = _loaded(pod, await engines.read(ADDRESS))
    assert (missed.load, missed.load_age) == (None, None), "its reading is older than 15 s"
    pods.answer = lambda _: web.Response(text=page.format(700))
    now[0] = 130.0
    await engines.read(ADDRESS)
    pods.answer = lambda _: web.Response(status=503)
    now[0] = 132.0
    await engines.read(ADDRESS)
    pods.answer = lambda _: web.Response(text=page.format(900))
    now[0] = 140.0
    read = await engines.read(ADDRESS)
    assert isinstance(read, EngineReading)
    assert read.load.tokens == 20.0, "the tokens of ten seconds, the missed answer among them"


async def test_an_endless_page_is_charged_for_what_was_received(pods: Pods) -> None:
    pods.answer = lambda _: web.Response(text="x" * (metrics_page.MAX_BYTES + 1))
    account = Accounts().open(("ns", "chat"), 1)
    before = account.time.left
    assert isinstance(await EngineReadings(pods.session).read(ADDRESS, account=account), Unread)
    await EngineWindows(pods.session).read([Pod("chat-1", ADDRESS, "aaaa")], "ns", "chat", account=account)
    assert before - account.time.left == pytest.approx(2 * metrics_page.MAX_BYTES * BYTE_SECONDS)


def test_many_services_of_a_tenant_share_its_time() -> None:
    now = [0.0]
    accounts = Accounts(lambda: now[0])
    for number in range(100):
        account = accounts.open(("ns", f"s{number}"), 5)
        if not account.overdrawn:
            with account.spending():
                now[0] += BASE_SECONDS
    # The time of the tenant, what came in meanwhile, and the last service that was allowed.
    assert now[0] <= 1.2 * (TENANT_SECONDS + BASE_SECONDS)
    assert "this namespace's pods" in accounts.open(("ns", "s100"), 5).overdrawn


async def test_pods_of_a_tenant_that_do_not_answer_have_limited_places(pods: Pods) -> None:
    """Each holds a connection until its time is over; another tenant's pod is asked at once."""
    asked, accounts, full = list[str](), Accounts(), asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        asked.append("hostile")
        if len(asked) == MAX_ASKED:
            full.set()
        await asyncio.sleep(60)
        return web.Response()

    app = web.Application()
    app.router.add_get("/metrics", hang)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, HOSTILE, ENGINE_PORT).start()
    hostile = [
        asyncio.create_task(EngineReadings(pods.session).read(HOSTILE, account=accounts.open(("hostile", "chat"), 200)))
        for _ in range(200)
    ]
    try:
        async with asyncio.timeout(10):
            await full.wait()
        reading = await EngineReadings(pods.session).read(ADDRESS, account=accounts.open(("ns", "chat"), 1))
        assert isinstance(reading, EngineReading)
        # On a slow machine the first ones have been given up by now, and others have their places.
        assert len(asked) <= MAX_ASKED + sum(task.done() for task in hostile)
    finally:
        for task in hostile:
            task.cancel()
        await asyncio.gather(*hostile, return_exceptions=True)
        await runner.cleanup()


async def test_a_tenant_s_own_picker_is_bounded_in_bytes_and_in_what_is_retained(
    pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_windows, "MAX_OWN_BUCKETS", 2_000)
    monkeypatch.setattr(gateway_windows, "TRIMMED_OWN_BUCKETS", 1_000)
    windows, started, since = GatewayWindows(pods.session), [0], list[float]()

    def answer(request: web.Request) -> web.Response:
        since.append(float(request.query["since"]))
        started[0] += 1
        histogram = {str(bucket): 1 for bucket in range(300)}
        entry = {"start": started[0], "requests": 300, "errors": 0, "revision": "aaaa", "ttft": histogram}
        return web.json_response({"instance": "g", "now": time.time(), "sliceSeconds": 1.0, "slices": [entry]})

    pods.answer = answer
    for _ in range(20):
        found = await windows.read([], "ns", "chat", judged=True, own=Own((ADDRESS,)))
        assert found is not None and sum(len(one.latency["ttft"]) for one in found) <= 2_300
    assert found is not None and found[-1].start == 20, "the newest are retained"

    pods.answer = lambda _: web.Response(text="x" * (gateway_windows.MAX_OWN_BYTES + 1))
    assert await windows.read([], "ns", "chat", judged=True, own=Own((ADDRESS,))) is None
    pods.answer = answer
    await windows.read([], "ns", "chat", judged=True, own=Own((ADDRESS,)))
    assert since[-1] == pytest.approx(time.time() - gateway_windows.LATEST_SECONDS, abs=5), (
        "only the latest is asked for"
    )


def gateway_pod(**changes: Any) -> dict[str, Any]:
    whole = {
        "metadata": {"name": "g", "ownerReferences": [{"kind": "ReplicaSet", "controller": True, "name": "g"}]},
        "spec": {"serviceAccountName": "pagefleet-gateway"},
        "status": {"podIP": ADDRESS, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    return {**whole, **changes}


def test_a_label_alone_makes_no_gateway_of_a_tenant_s_pod() -> None:
    assert readings.is_installed_gateway(gateway_pod())
    assert not readings.is_installed_gateway(gateway_pod(metadata={"name": "g"}))
    assert not readings.is_installed_gateway(gateway_pod(spec={"serviceAccountName": "default"}))
    assert not readings.is_installed_gateway(gateway_pod(spec={}))
    assert not readings.is_installed_gateway(gateway_pod(status={"podIP": ADDRESS}))
