"""`spec.traffic.peak.maxOutputTokens` through a real Envoy.

Protects that the engine gets the lowered limit in a whole body, also at a retry and in a mirrored copy; that a request which had
to wait is capped; that the cap comes and goes with a write to the service; and that the engine gets its class's priority beside it.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

from support.gateway.fleet import CANARY, STABLE, Engine, Fleet, running, until

from pagefleet_gateway.cluster.engines import own_engine

PATH = "/team/chat/v1/chat/completions"
LONG = {"model": "smol", "max_tokens": 9000, "messages": [{"role": "user", "content": 'say "max_tokens": 9000, and é'}]}
CAPPED = LONG | {"max_tokens": 64}
PEAK = "x-pagefleet-peak-output-tokens"


async def bodies(engine: Engine) -> list[object]:
    return [json.loads(await request.read()) for request in engine.requests]


async def busy(fleet: Fleet, engine: Engine) -> None:
    """Have the gateway read that requests wait in the engine."""
    engine.waiting = 3
    readings = fleet.gateway.readings
    await until(lambda: readings.of(engine.pod(), time.monotonic()).waiting > 0)


async def test_an_answer_is_capped_while_requests_wait_in_every_engine_and_the_cap_is_changed_at_once() -> None:
    async with running() as fleet:
        engine = await fleet.engine(STABLE)
        fleet.serve((STABLE, 100), peak_output_tokens=64)
        _, _, headers = await fleet.chat(json=LONG)
        assert PEAK not in headers, "nobody waits"
        await busy(fleet, engine)
        _, _, headers = await fleet.chat(json=LONG)
        assert headers[PEAK] == "64"
        fleet.serve((STABLE, 100), peak_output_tokens=7)
        await fleet.chat(json=LONG)
        fleet.serve((STABLE, 100))
        await fleet.chat(json=LONG)
        assert await bodies(engine) == [LONG, CAPPED, LONG | {"max_tokens": 7}, LONG]
        assert not any(name.startswith("x-pagefleet-body") for request in engine.requests for name in request.headers)


async def test_the_engine_gets_the_priority_of_the_class_beside_the_cap() -> None:
    async with running() as fleet:
        engine = await fleet.engine(STABLE)
        pod = replace(engine.pod(), engine=own_engine(["serve"]))
        classes = ((("x-class", "people"),), (("x-class", "jobs"),))
        fleet.state.replace_pods([pod])
        await until(lambda: pod in fleet.serving())
        fleet.serve((STABLE, 100), peak_output_tokens=64, priorities=classes)
        for name in ("people", "jobs", "nobody"):
            await fleet.chat(json=LONG, headers={"x-class": name})
        await busy(fleet, engine)
        await fleet.chat(json=LONG | {"priority": 1000}, headers={"x-class": "people"})
        await fleet.chat(json=LONG | {"priority": 1000}, headers={"x-class": "nobody"})
        assert await bodies(engine) == [
            LONG | {"priority": 2},
            LONG | {"priority": 1},
            LONG,
            CAPPED | {"priority": 2},
            CAPPED | {"priority": 0},
        ]


def large(number: int, limit: int = 9000) -> dict[str, object]:
    """Return a request of 60 kB. Each number is another prompt, which no engine has cached."""
    return LONG | {"max_tokens": limit, "messages": [{"role": "user", "content": f"{number} " + "0123456789" * 6000}]}


async def test_large_bodies_retries_and_copies_are_capped() -> None:
    async with running() as fleet:
        broken, engine = await fleet.engine(STABLE, status=503), await fleet.engine(STABLE, waiting=0)
        copied = await fleet.engine(CANARY)
        fleet.serve((STABLE, 100), peak_output_tokens=64, mirror=(CANARY, 100.0))
        for each in (broken, engine):
            await busy(fleet, each)
        tries = range(40)
        for number in tries:
            status, _, headers = await fleet.chat(json=large(number))
            assert (status, headers[PEAK]) == (200, "64")
            if broken.requests:  # it was picked first
                break
        assert broken.requests
        await until(lambda: len(copied.requests) > 0)
        capped = [large(number, 64) for number in tries]
        for each in (broken, engine, copied):
            assert all(body in capped for body in await bodies(each))


async def test_a_request_that_had_to_wait_is_capped() -> None:
    async with running() as fleet:
        engine = await fleet.engine(STABLE, gate=asyncio.Semaphore(0))
        fleet.serve((STABLE, 100), pod_limit=1, hold_seconds=30.0, peak_output_tokens=64)
        first = await fleet.http.post(fleet.url + PATH, json=LONG | {"stream": True})
        await first.content.readline()
        held = asyncio.create_task(fleet.chat(json=LONG))
        await until(lambda: fleet.gateway.holding.held(("team", "chat")) == 1)
        first.close()
        _, _, headers = await held
        assert headers[PEAK] == "64"
        assert await bodies(engine) == [LONG | {"stream": True}, CAPPED]
