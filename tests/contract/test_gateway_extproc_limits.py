"""The bounds of the endpoint picker's port, over plain gRPC: bodies, exchanges and what refusals leave behind.

Protects that a body above gRPC's own 4 MiB gets a 413, that too many exchanges and too many held bodies are refused by
name, and that refused requests, which have no line of Envoy's, leave no memory behind.
"""

from __future__ import annotations

import json

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as proto
from support.gateway.ext_proc import BODY, World, serving

from pagefleet_gateway.app import Gateway
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import State
from pagefleet_gateway.fronts.ext_proc_limits import MIB, Limits
from pagefleet_gateway.settings import Settings


def code(answer: proto.ImmediateResponse) -> tuple[int, str]:
    return answer.status.code, json.loads(answer.body)["error"]["code"]


@pytest.mark.parametrize("size", [4 * MIB + 1, 8 * MIB])
async def test_a_body_above_grpcs_own_limit_gets_the_gateways_413(size: int) -> None:
    async with serving(Limits(4 * MIB)) as world:
        assert code(await world.call().refusal(b" " * size)) == (413, "request_too_large")
        whole = json.dumps({"model": "smol", "prompt": "x" * (4 * MIB - 100)}).encode()
        call = world.call()
        await call.request()
        await call.read()
        await call.body(whole)
        assert (await call.read()).HasField("request_body"), "a body within the limit is picked for"


async def test_more_exchanges_than_the_limit_are_refused_by_name_and_the_others_go_on() -> None:
    async with serving(Limits(65536, exchanges=2)) as world:
        calls = [world.call(), world.call()]
        for call in calls:
            await call.pick()
        refused = world.call()
        await refused.request()
        assert code((await refused.read()).immediate_response) == (503, "picker_busy")
        for call in calls:
            await call.answered("10.0.0.1:8000")
            await call.end()
        assert world.front.exchanges == 0
        assert len(await world.call().pick()) == 3


async def test_bodies_that_wait_for_a_decision_are_bounded_together_and_let_go_after_it() -> None:
    async with serving(Limits(65536, buffered_bytes=100_000)) as world:
        held = world.call()
        await held.request()
        await held.read()
        await held.body(b"x" * 60_000, end=False)
        await held.read()
        assert code(await world.call().refusal(b"x" * 50_000)) == (503, "picker_buffers_full")
        assert len(await world.call().pick()) == 3
        assert world.front.buffers.held == 60_000
        held.stream.cancel()
        await world.call().pick()
        for _ in range(5):  # each picked request lets its own body go
            await world.call().pick()
        assert world.front.buffers.held == 0


async def test_refused_requests_leave_nothing_behind_and_are_logged() -> None:
    state, lines = State(), []
    state.put_service(Service("team", "chat", "smol", (("aaaaaaaa", 100),)))
    settings = Settings(port=0, internal_port=0, address="127.0.0.1", picker_port=0, picker_tls=False, settle_seconds=0)
    gateway = Gateway(settings, state, lines.append)
    try:
        await gateway.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.picker_port}") as channel:
            world = World(channel, state, gateway.ledger)
            for _ in range(50):
                call = world.call()
                assert code(await call.refusal(BODY)) == (503, "no_ready_pod")
                assert await call.stream.read() is grpc.aio.EOF
        assert len(gateway._refused) == 0
        logged = [json.loads(line) for line in lines]
        assert [(line["code"], line["refused"]) for line in logged] == [(503, "no_ready_pod")] * 50
    finally:
        await gateway.close()
