"""Protects the pod of a warm spare of vLLM, over real HTTP: through its sidecar nobody reaches a route of vLLM's developers, however the
path is written, and clients, monitoring and the operator reach what they reach in a replica. An engine that computes is not put to sleep,
and one that sleeps is asked nothing. The operator's own orders and readings put it to sleep, see that it sleeps, and wake it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import aiohttp
import pytest
from support.gateway.fleet import until
from support.gateway.sleeping_engine import Sleeper
from support.gateway.split_engines import free_port
from support.golden_manifests import child_of, spec_of
from support.loopback import own_address
from support.released_engines import facts

from pagefleet_contract.disaggregation import SIDECAR, SIDECAR_LIVE_PATH, SIDECAR_READY_PATH
from pagefleet_contract.engine_metrics import engine_of
from pagefleet_contract.names import ENGINE_PORT, SIDECAR_ENGINE_PORT
from pagefleet_operator.domain.manifests.spare import spare_deployment
from pagefleet_operator.domain.status.plan import SpareOrder
from pagefleet_operator.kube import client
from pagefleet_operator.kube.spares import SpareOrders
from pagefleet_operator.kube.store import Store
from pagefleet_operator.metrics import engine_readings
from pagefleet_operator.metrics.engine_readings import EngineReading, EngineReadings
from pagefleet_sidecar.guard import CONTROLS, Guard, is_open
from pagefleet_sidecar.main import listening, parser
from pagefleet_sidecar.proxy import Settings

ROUTES = [tuple(route.split()) for route in facts("vllm")["routes"]]
DEVELOPERS = [tuple(route.split()) for route in facts("vllm")["developers' routes"]]
# What vLLM serves to everybody, and a spare's sidecar to nobody: profiles, the end of others' requests, ranks and faults of a group.
CLOSED = [
    ("GET", "/fault_tolerance/status"), ("POST", "/abort_requests"), ("POST", "/fault_tolerance/apply"),
    ("POST", "/inference/v1/abort_requests"), ("POST", "/is_scaling_elastic_ep"), ("POST", "/scale_elastic_ep"),
    ("POST", "/start_profile"), ("POST", "/stop_profile"),
]  # fmt: skip
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
# How a path may be written so that one server reads it as another than the next: all of them for /collective_rpc.
DISGUISES = (
    "/v1/../collective_rpc", "/v1/%2e%2e/collective_rpc", "/v1/..%2fcollective_rpc", "//collective_rpc", "/./collective_rpc",
    "/collective_rpc/", "/%63ollective_rpc", "/collective_rpc?/v1/models", "/collective_rpc#/v1/models", "/health/../collective_rpc",
    "/v1/..;/collective_rpc", "/v1/x\\..\\..\\collective_rpc", "/tokenize/../collective_rpc", "/v1//../collective_rpc",
    "http://127.0.0.1/collective_rpc", "http://127.0.0.1/v1/../collective_rpc", "/v1/models%00/../../collective_rpc", "*",
)  # fmt: skip


@dataclass
class Spare:
    """A pod: the sidecar at `host` and `port`, the engine on the loopback."""

    host: str = "127.0.0.1"
    port: int = 0
    engine: Sleeper = field(default_factory=Sleeper)

    async def start(self, stack: AsyncExitStack) -> None:
        await self.engine.start(stack)
        self.guard = Guard(Settings("a", self.engine.port, 1.0))
        self.port = await stack.enter_async_context(listening(self.guard, self.host, self.port))
        self.http = await stack.enter_async_context(aiohttp.ClientSession())

    async def ask(self, method: str, path: str) -> tuple[int, str]:
        async with self.http.request(method, f"http://{self.host}:{self.port}{path}") as response:
            return response.status, await response.text()

    async def raw(self, target: str, method: str = "POST") -> int:
        """Ask for a target that a client's library would write otherwise. Return the status; 0 for a connection that ends."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(
            f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode()
        )
        answer = await reader.readline()
        writer.close()
        return int(answer.split()[1]) if answer else 0

    async def ready(self) -> bool:
        return (await self.ask("GET", SIDECAR_READY_PATH))[0] == 200


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def spare(stack: AsyncExitStack) -> Spare:
    made = Spare()
    await made.start(stack)
    return made


def test_of_the_developers_routes_that_are_released_those_of_sleep_alone_are_open() -> None:
    assert {("POST", "/collective_rpc"), ("POST", "/update_weights"), *CONTROLS} <= set(DEVELOPERS)
    assert [path for _, path in DEVELOPERS if any(is_open(method, path) for method in METHODS)] == []
    assert [route for route in ROUTES if not is_open(*concrete(route))] == CLOSED


def concrete(route: tuple[str, ...]) -> tuple[str, str]:
    method, path = route
    return method, path.replace("{response_id}", "resp_1")


@pytest.mark.parametrize("method", METHODS)
async def test_no_route_of_developers_is_reached(spare: Spare, method: str) -> None:
    for path in {route[1] for route in (*DEVELOPERS, *CLOSED) if (method, route[1]) not in CONTROLS}:
        status, text = await spare.ask(method, path)
        assert (status, "not open to clients" in text) == (404, True), path
    assert spare.engine.asked == []


@pytest.mark.parametrize("target", DISGUISES)
async def test_no_spelling_of_a_path_passes(spare: Spare, target: str) -> None:
    for method in ("GET", "POST"):
        assert await spare.raw(target, method) in (400, 404)
    assert spare.engine.asked == []


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/metrics"), *(concrete(route) for route in ROUTES if route not in CLOSED)]
)
async def test_what_clients_and_monitoring_need_is_passed_on_as_it_is(spare: Spare, method: str, path: str) -> None:
    assert (await spare.ask(method, f"{path}?a=b%20c"))[0] == 200
    assert spare.engine.asked == [f"{method} {path}?a=b%20c"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/sleep"), ("PUT", "/sleep"), ("GET", "/wake_up"), ("POST", "/is_sleeping"), ("POST", "/health")],
)
async def test_routes_are_open_by_method(spare: Spare, method: str, path: str) -> None:
    assert (await spare.ask(method, path))[0] == 404
    assert spare.engine.asked == []


async def test_sleep_gives_up_neither_weights_nor_requests(spare: Spare) -> None:
    for query in ("?level=2", "?level=1&mode=abort", "?mode=keep", "?level=1&level=2", "?level=01"):
        assert (await spare.ask("POST", f"/sleep{query}"))[0] == 400
    spare.engine.gate = asyncio.Event()
    client_ = asyncio.create_task(spare.ask("POST", "/v1/completions"))
    await until(lambda: bool(spare.engine.running))
    assert await spare.ready()
    assert (await spare.ask("POST", "/sleep?level=1"))[0] == 409
    spare.engine.gate.set()
    assert (await client_)[0] == 200
    assert (await spare.ask("POST", "/sleep?level=1"))[0] == 200
    assert spare.engine.asked == ["POST /v1/completions", "POST /sleep?level=1&mode=wait"]


async def test_an_engine_that_sleeps_is_asked_nothing_and_lives(spare: Spare) -> None:
    assert (await spare.ask("POST", "/sleep"))[0] == 200
    assert not await spare.ready()
    status, text = await spare.ask("POST", "/v1/completions")
    assert (status, '"code": "sleeping"' in text) == (503, True)
    for path in (SIDECAR_LIVE_PATH, "/health", "/metrics", "/v1/models", "/is_sleeping"):
        assert (await spare.ask("GET", path))[0] == 200
    assert (await spare.ask("POST", "/wake_up?tags=kv_cache"))[0] == 200
    assert spare.engine.asked[-1] == "POST /wake_up", "an engine is woken as a whole"
    assert await spare.ready()
    assert (await spare.ask("POST", "/v1/completions"))[0] == 200


async def test_a_sidecar_that_starts_anew_learns_that_its_engine_sleeps(spare: Spare) -> None:
    await spare.ask("POST", "/sleep")
    spare.guard.asleep = False
    assert not await spare.ready()
    assert (await spare.ask("POST", "/v1/completions"))[0] == 503


async def test_without_an_engine_the_pod_is_alive_and_not_ready(stack: AsyncExitStack) -> None:
    gone = Spare(engine=Sleeper(port=free_port()))
    gone.guard = Guard(Settings("a", gone.engine.port, 1.0))
    gone.port = await stack.enter_async_context(listening(gone.guard, gone.host, 0))
    gone.http = await stack.enter_async_context(aiohttp.ClientSession())
    assert (await gone.ask("GET", SIDECAR_LIVE_PATH))[0] == 200
    assert not await gone.ready()
    with pytest.raises(aiohttp.ClientError):
        await gone.ask("GET", "/health")


async def test_the_operator_puts_it_to_sleep_sees_it_and_wakes_it(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_readings, "FRESH_SECONDS", 0.0)
    pod = Spare(own_address(0), ENGINE_PORT)
    await pod.start(stack)
    engine = engine_of({"metadata": spare_deployment(child_of(spec_of("vllm")), 1)["spec"]["template"]["metadata"]})
    readings, answered = EngineReadings(pod.http), list[object]()
    orders = SpareOrders(client.Api(None), Store(), pod.http, lambda: None, answered.append)

    async def sleeping() -> bool | None:
        reading = await readings.read(pod.host, engine)
        assert isinstance(reading, EngineReading), reading
        return reading.sleeping

    assert await sleeping() is False
    for asleep in (True, False):
        await orders.carry_out(("ns", "chat"), [SpareOrder("spare-1", pod.host, None, asleep)])
        await until(lambda: not orders._asking)
        assert await sleeping() is asleep
        assert await pod.ready() is not asleep
    assert answered == [("ns", "chat"), ("ns", "chat")]


def test_the_operator_starts_engine_and_sidecar_so() -> None:
    """The engine is behind the loopback: the developers' routes are reached from nowhere else."""
    engine, sidecar = spare_deployment(child_of(spec_of("vllm")), 1)["spec"]["template"]["spec"]["containers"]
    given = parser().parse_args(sidecar["args"])
    assert (sidecar["name"], given.spare, given.port, given.engine_port) == (
        SIDECAR,
        True,
        ENGINE_PORT,
        SIDECAR_ENGINE_PORT,
    )
    assert [one for one in engine["args"] if one.startswith(("--host", "--port"))] == [
        "--host=127.0.0.1",
        "--port=8001",
    ]
    assert "127.0.0.1" in Settings("a", given.engine_port, 1.0).engine_addresses
    assert {"name": "VLLM_SERVER_DEV_MODE", "value": "1"} in engine["env"] and "ports" not in engine
