"""Protects what the guard reads, over real HTTP: NaN, infinities, empty, duplicate, malformed and endless answers, 5xx,
hanging and absent peers are no measurement and so never a pass; an engine's restart is a gap; tokens of one answer do not
count as independent."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from support.loopback import own_address

from pagefleet_contract import sketch
from pagefleet_contract.engine_metrics import Engine
from pagefleet_contract.names import ENGINE_PORT, GATEWAY_INTERNAL_PORT
from pagefleet_engine.api.observability.metrics import Metrics
from pagefleet_engine.core.requests import EngineConfig
from pagefleet_operator.domain.analysis import guard
from pagefleet_operator.domain.analysis.guard import Comparison
from pagefleet_operator.domain.analysis.verdict import Outcome
from pagefleet_operator.domain.spec.rollout import Gate, Guard, LatencyGuard
from pagefleet_operator.domain.status.observation import GateReading, Observation
from pagefleet_operator.domain.status.status import Status
from pagefleet_operator.metrics.cumulative import Pod, difference, parse
from pagefleet_operator.metrics.engine_readings import EngineReadings, Unread
from pagefleet_operator.metrics.engine_windows import EngineWindows
from pagefleet_operator.metrics.gateway_windows import GatewayWindows
from pagefleet_operator.metrics.prometheus_client import Prometheus
from pagefleet_operator.metrics.promql_gates import PrometheusGates

ABSENT = "127.66.0.1"  # nobody listens there
GATE = Gate("queue", 'up{namespace="$namespace",revision="$canary"}', None, 5.0, 0.0)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Peer:
    """A server whose answer a test chooses."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self.session, self.port = session, port
        self.address = own_address()
        self.answer: Answer = text("")

    async def handle(self, request: web.Request) -> web.StreamResponse:
        return await self.answer(request)


@pytest_asyncio.fixture(params=[])
async def peer(request: pytest.FixtureRequest) -> AsyncIterator[Peer]:
    app = web.Application()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    async with aiohttp.ClientSession() as session:
        peer = Peer(session, request.param)
        app.router.add_route("*", "/{path:.*}", peer.handle)
        await runner.setup()
        await web.TCPSite(runner, peer.address, peer.port).start()
        yield peer
    await runner.cleanup()


def text(body: str, status: int = 200) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body, status=status)

    return answer


async def hang(_: web.Request) -> web.Response:
    await asyncio.sleep(60)
    raise web.HTTPGone


async def endless(request: web.Request) -> web.StreamResponse:
    """Answer 100 MB, which no client should read to the end."""
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        for _ in range(100):
            await response.write(b"9" * (1 << 20))
    except (ConnectionError, aiohttp.ClientConnectionError):
        return response
    return response


def vector(*values: object) -> str:
    result = [{"metric": {}, "value": [1.0, value]} for value in values]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})


BAD_GATES: list[tuple[str, Answer]] = [
    ("NaN", text(vector("NaN"))),
    ("+Inf", text(vector("+Inf"))),
    ("-Inf", text(vector("-Inf"))),
    ("empty", text(vector())),
    ("two", text(vector("1", "2"))),
    ("matrix", text('{"status": "success", "data": {"resultType": "matrix", "result": []}}')),
    ("error", text('{"status": "error", "error": "parse error"}', 400)),
    ("words", text(vector("much"))),
    ("null", text("null")),
    ("cut", text('{"status": "succ')),
    ("deep", text("[" * 200_000)),
    ("blank", text("")),
    ("500", text(vector("1"), 500)),
    ("503", text("", 503)),
    ("redirect", text("", 302)),
    ("hang", hang),
    ("100 MB", endless),
]


BAD_LOADS: list[tuple[str, Answer, str]] = [
    ("503", text("", 503), " answers 503"),
    ("blank", text(""), " lacks a number that the engine should report"),
    ("negative", text("pagefleet_num_requests_waiting -1\npagefleet_num_requests_running 0\n"), " lacks a number"),
    ("hang", hang, " does not answer within 2 s"),
    ("100 MB", endless, " answers with more than 1048576 bytes"),
]


@pytest.mark.parametrize("peer", [ENGINE_PORT], indirect=True)
@pytest.mark.parametrize(("answer", "cause"), [case[1:] for case in BAD_LOADS], ids=[case[0] for case in BAD_LOADS])
async def test_a_load_that_cannot_be_read_has_a_cause_that_names_the_page(
    peer: Peer, answer: Answer, cause: str
) -> None:
    peer.answer = answer
    reading = await EngineReadings(peer.session).read(peer.address)
    assert isinstance(reading, Unread)
    assert reading.cause.startswith(f"http://{peer.address}:{ENGINE_PORT}/metrics{cause}")


async def test_an_engine_without_metrics_is_not_asked() -> None:
    async with aiohttp.ClientSession() as session:
        reading = await EngineReadings(session).read(ABSENT, Engine(metrics=None))
    assert reading == Unread("its engine reports no metrics")


def judged(reading: GateReading) -> Outcome:
    observation = Observation("ns", "chat", "uid", 1, {}, Status(), gates={"queue": reading})
    chosen = Guard((), None, 0, "hold", 60.0, None, (GATE,))
    verdict = guard.assess(observation, chosen, Comparison("s", "c", since=None, now=1.0))
    assert verdict is not None
    return verdict.outcome


@pytest.mark.parametrize("peer", [18234], indirect=True)
@pytest.mark.parametrize("answer", [answer for _, answer in BAD_GATES], ids=[name for name, _ in BAD_GATES])
async def test_a_failing_prometheus_is_inconclusive(peer: Peer, answer: Answer) -> None:
    peer.answer = answer
    gates = PrometheusGates(Prometheus(peer.session, f"http://{peer.address}:{peer.port}"))
    readings = await gates.read([GATE], {})
    assert readings["queue"].value is None
    assert readings["queue"].message
    assert judged(readings["queue"]) is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("peer", [18234], indirect=True)
async def test_a_gate_is_asked_with_its_names_and_held_to_its_bounds(peer: Peer) -> None:
    queries = []

    async def answer(request: web.Request) -> web.Response:
        queries.append((await request.post())["query"])
        return web.Response(text=vector("4" if len(queries) == 1 else "6"))

    peer.answer = answer
    gates = PrometheusGates(Prometheus(peer.session, f"http://{peer.address}:{peer.port}/"))
    names = {"namespace": "team-a", "canary": "cccc"}
    assert judged((await gates.read([GATE], names))["queue"]) is Outcome.PASSED
    assert judged((await gates.read([GATE], names))["queue"]) is Outcome.REGRESSED
    assert queries == ['up{namespace="team-a",revision="cccc"}'] * 2


async def test_no_prometheus_and_a_dead_one_are_inconclusive() -> None:
    async with aiohttp.ClientSession() as session:
        for url in ("", f"http://{ABSENT}:1"):
            readings = await PrometheusGates(Prometheus(session, url)).read([GATE], {})
            assert judged(readings["queue"]) is Outcome.INCONCLUSIVE


BAD_WINDOWS: list[tuple[str, Answer, bool]] = [
    ("500", text("{}", 500), False),
    ("cut", text('{"instance": "g"'), False),
    ("hang", hang, False),
    ("100 MB", endless, False),
    ("null", text("null"), False),
    ("no slices", text('{"instance": "g", "now": 9, "sliceSeconds": 2, "slices": []}'), True),
    ("no time", text('{"instance": "g", "sliceSeconds": 2, "slices": []}'), False),
    ("NaN", text('{"instance": "g", "now": 9, "sliceSeconds": 2, "slices": [{"start": NaN, "requests": 1, "errors": 0}]}'), True),
    ("negative", text('{"instance": "g", "now": 9, "sliceSeconds": 2, "slices": [{"start": 1, "requests": -1, "errors": 0}]}'), True),
]  # fmt: skip


@pytest.mark.parametrize("peer", [GATEWAY_INTERNAL_PORT], indirect=True)
@pytest.mark.parametrize(("answer", "answers"), [bad[1:] for bad in BAD_WINDOWS], ids=[bad[0] for bad in BAD_WINDOWS])
async def test_a_failing_gateway_is_no_measurement(peer: Peer, answer: Answer, answers: bool) -> None:
    peer.answer = answer
    slices = await GatewayWindows(peer.session).read([peer.address], "ns", "chat", judged=True)
    assert slices == (() if answers else None)
    observation = Observation("ns", "chat", "uid", 1, {}, Status(), slices=slices)
    chosen = Guard((LatencyGuard("ttft", 0.95, 0.15, 0.99, 10),), 0.01, 0, "hold", 60.0)
    judgement = guard.assess(observation, chosen, Comparison("s", "c", since=0.0, now=100.0))
    assert judgement is not None
    assert judgement.outcome is Outcome.INCONCLUSIVE


def engine() -> Metrics:
    return Metrics("m", EngineConfig(model="m"))


def served(metrics: Metrics, requests: int, seconds: float, tokens: int = 0) -> str:
    for _ in range(requests):
        metrics.ttft.observe(seconds)
        metrics.queue.observe(seconds / 10)
        metrics.itl.observe(seconds / 20, tokens)
        metrics.finished("stop", seconds * 3, 5)
    return metrics.text().decode()


POD = Pod("chat-aaaa-1", ABSENT, "aaaa")


def test_what_came_between_two_scrapes() -> None:
    metrics = engine()
    first = parse(served(metrics, 3, 0.5, 10), 10.0)
    second = parse(served(metrics, 4, 0.1, 50), 12.0)
    assert first is not None
    assert second is not None
    piece = difference(first, second, POD, 0.5)
    assert piece is not None
    assert (piece.start, piece.seconds, piece.revision, piece.requests) == (10.0, 2.0, "aaaa", 4)
    for signal, value in (("ttft", 0.1), ("e2e", 0.3), ("queue", 0.01), ("itl", 0.005)):
        assert sketch.total(piece.latency[signal]) == 4, f"{signal}: as many as requests, not as tokens"
        most, ((low, high),) = sketch.quantile(piece.latency[signal], 0.95), piece.edged[signal].buckets()
        assert most is not None
        assert low < value <= high
        assert high <= 1.051 * low, "the engine's edges are 5 % apart"
        assert value <= most <= value * 1.08
    assert difference(second, first, POD, 0.5) is None, "a restart is a gap"
    restarted = parse(served(engine(), 9, 0.1, 1), 14.0)
    assert restarted is not None
    assert difference(second, restarted, POD, 0.5) is None, "also when more requests have ended since"


@pytest.mark.parametrize("damage", ["", "NaN", "-1", "cut", "other", "bound -1", "bound NaN"])
def test_a_damaged_page_is_no_reading(damage: str) -> None:
    """A bound below zero is the end of no latency: no decision was made about a service whose engine had one."""
    whole = served(engine(), 3, 0.5, 10)
    line = next(line for line in whole.splitlines() if "time_to_first_token_seconds_bucket" in line and "+Inf" in line)
    match damage:
        case "":
            page = ""
        case "cut":
            page = whole[: whole.index(line)]
        case "other":
            page = "up 1\n"
        case "bound -1" | "bound NaN":
            page = whole.replace(line, line.replace("+Inf", damage.removeprefix("bound ")) + f"\n{line}")
        case _:
            page = whole.replace(line, line.rsplit(" ", 1)[0] + f" {damage}")
    assert parse(page, 1.0) is None


def test_thinned_tokens_keep_their_distribution() -> None:
    """Over many scrapes the share of slow tokens stays, though each scrape keeps a few."""
    metrics, counted, slow = engine(), 0, 0
    before = parse(served(metrics, 1, 0.1, 1), 0.0)
    assert before is not None
    for number in range(1, 400):
        metrics.itl.observe(0.2, 3)
        metrics.itl.observe(0.01, 27)
        metrics.finished("stop", 1.0, 30)
        after = parse(metrics.text().decode(), float(number))
        assert after is not None
        piece = difference(before, after, POD, number * (math.sqrt(5) - 1) / 2 % 1.0)
        assert piece is not None
        counted += sketch.total(piece.latency["itl"])
        slow += piece.edged["itl"].above(0.1)
        before = after
    assert counted == pytest.approx(399, abs=2)
    assert slow / counted == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("peer", [ENGINE_PORT], indirect=True)
async def test_engines_are_read_and_a_silent_one_is_no_measurement(peer: Peer) -> None:
    metrics, engines, pod = engine(), EngineWindows(peer.session), Pod("chat-aaaa-1", peer.address, "aaaa")
    peer.answer = text(served(metrics, 2, 0.1, 5))
    assert await engines.read([pod], "ns", "chat") == ()
    peer.answer = text(served(metrics, 5, 0.1, 5))
    slices = await engines.read([pod], "ns", "chat")
    assert slices is not None
    assert [piece.requests for piece in slices] == [5]
    silent = Pod("chat-cccc-1", ABSENT, "cccc")
    assert await engines.read([pod, silent], "ns", "chat") is None
    for answer in (text("", 500), hang, endless):
        peer.answer = answer
        assert await engines.read([pod], "ns", "chat") is None
    assert await engines.read([], "ns", "chat") is None
