"""The cases of the inference extension's conformance suite about where a picked request goes, with a real Envoy in front of the
endpoint picker. Each case has the name that it has in the suite; `Protocol` are cases of the protocol's text that the suite leaves out.

Protects four things. Every request reaches an endpoint that the picker was allowed to pick, at the picked port. The gateway tells the
picker which endpoint served. When an endpoint is gone, the gateway tries the next one in the picker's order. Without any endpoint the
answer is 503.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.gateway.conforming import Answer, Gateways, Pool, gateways, pools, to
from support.gateway.fleet import until

PATH, HOST = "/primary-gateway-test", "primary.example.com"
REQUESTS = 30  # of each case; the suite sends 100


@asynccontextmanager
async def served(
    folder: Path, mode: str = "FULL_DUPLEX_STREAMED", **options: int
) -> AsyncIterator[tuple[Pool, Gateways]]:
    """Run a pool and a Gateway with a route to it."""
    async with (
        pools(folder, "primary", **options) as (pool,),
        gateways(folder, primary=[to(PATH, pool, HOST)], requests=mode) as front,
    ):
        yield pool, front


async def many(front: Gateways, picks: list[str]) -> list[Answer]:
    """Send requests, ten at a time, as the suite does."""
    answers: list[Answer] = []
    for _ in range(REQUESTS // 10):
        answers += await asyncio.gather(*(front.ask(PATH, picks, host=HOST) for _ in range(10)))
    return answers


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
@pytest.mark.parametrize("picked", [(2,), (0, 1), (0, 1, 2)], ids=["one pod", "two pods", "all pods"])
async def test_gateway_following_epp_routing(tmp_path: Path, picked: tuple[int, ...], mode: str) -> None:
    async with served(tmp_path, mode) as (pool, front):
        names = [list(pool.pods)[index] for index in picked]
        answers = await many(front, [f"{pool.pods[name]}:{pool.ports[0]}" for name in names])
        assert {answer.status for answer in answers} == {200}
        assert {answer.pod for answer in answers} == set(names)


@pytest.mark.parametrize(
    "picked",
    [{1: (0, 1, 2)}, {0: (0, 1, 2), 2: (1,)}, {0: (0, 1, 2), 1: (0, 2), 2: (0, 1, 2)}],
    ids=["one pod, any rank", "two pods, one with one rank", "all pods, one with two ranks"],
)
async def test_gateway_following_epp_routing_with_data_parallelism(
    tmp_path: Path, picked: dict[int, tuple[int, ...]]
) -> None:
    async with served(tmp_path, ports=3) as (pool, front):
        allowed = {(list(pool.pods)[pod], pool.ports[rank]) for pod, ranks in picked.items() for rank in ranks}
        answers = await many(front, [f"{pool.pods[pod]}:{port}" for pod, port in allowed])
        assert {(answer.pod, answer.port) for answer in answers} <= allowed
        assert {answer.pod for answer in answers} == {pod for pod, _ in allowed}


async def test_gateway_destination_endpoint_served(tmp_path: Path) -> None:
    async with served(tmp_path) as (pool, front):
        assert pool.picker is not None
        lines = pool.picker.lines
        for number, (name, host) in enumerate(pool.pods.items(), 1):
            endpoint = f"{host}:{pool.ports[0]}"
            assert (await front.ask(PATH, [endpoint], host=HOST)).pod == name
            await until(lambda number=number: len(lines) == number)  # type: ignore[misc]
            assert (lines[-1]["upstream"], lines[-1]["code"]) == (endpoint, 200)
        assert b"pagefleet_gateway_picker_outcomes_dropped_total 0.0" in pool.picker.gateway.metrics.text()


async def test_protocol_endpoints_are_tried_in_the_pickers_order(tmp_path: Path) -> None:
    async with pools(tmp_path, "primary", pods=2) as (pool,):
        assert pool.picker is not None
        gone = "127.200.0.1"  # a pod whose process has just ended: the picker does not know yet
        pool.pods["gone"] = gone
        await pool.known()
        async with gateways(tmp_path, primary=[to(PATH, pool, HOST)]) as front:
            name, host = next(iter(pool.pods.items()))
            picks = [f"{gone}:{pool.ports[0]}", f"{host}:{pool.ports[0]}"]
            lines = pool.picker.lines
            for number in range(1, 41):  # one after the other: Envoy itself bounds retries that go on at the same time
                answer = await front.ask(PATH, picks, host=HOST)
                assert (answer.status, answer.pod) == (200, name)
                await until(lambda number=number: len(lines) == number)  # type: ignore[misc]
                assert lines[-1]["upstream"] == picks[1]
                if lines[-1]["attempts"] == 2:
                    break
            assert lines[-1]["attempts"] == 2


@pytest.mark.parametrize("picks", [[], ["127.200.0.2:1"]], ids=["an empty subset", "none of the pool's endpoints"])
async def test_protocol_no_eligible_endpoint_is_503(tmp_path: Path, picks: list[str]) -> None:
    async with served(tmp_path, pods=1) as (pool, front):
        assert (await front.ask(PATH, picks, host=HOST)).status == 503
        assert (await front.ask(PATH, host=HOST)).status == 200
        assert len(pool.seen) == 1
