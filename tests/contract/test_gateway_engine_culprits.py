"""Protects a fleet from one request: behind a real Envoy, a request that ends engines meets a few pods and then none, while
others are answered. Servers that cut their connections, and real engines whose process ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientPayloadError, ClientResponse, web
from support.engine.api_process import NAME, make_model
from support.engine.failing_runner import FIRST, KILLS, RAISES, fault
from support.gateway.engine_pods import pods
from support.gateway.fleet import STABLE, Engine, Fleet, running, until

from pagefleet_gateway.picking.deaths import content

PATH = "/team/chat/v1/completions"


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with running() as fleet:
        yield fleet


@dataclass
class Mortal(Engine):
    """An engine that a word in a prompt ends, before its answer or after the first token of it."""

    ended: bool = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        word = (await request.json())["messages"][0]["content"]
        if word == "end":
            self.ended = True
            self.die()
            await asyncio.sleep(10)
        self.truncate = self.ended = self.ended or word == "end later"
        return await super().answer(request)


async def mortals(fleet: Fleet, count: int) -> list[Mortal]:
    return await join(fleet, [Mortal(f"127.0.0.{11 + number}", STABLE) for number in range(count)])


async def join(fleet: Fleet, engines: list[Any]) -> list[Any]:
    for engine in engines:
        await engine.start()
        fleet.stack.push_async_callback(engine.stop)
        fleet.state.put_pod(engine.pod())
    await until(lambda: len(fleet.serving()) == len(engines))
    return engines


async def known(fleet: Fleet, response: ClientResponse) -> dict[str, Any]:
    """Return the access log's line of an answer."""
    name, lines = response.headers["x-request-id"], []

    def there() -> bool:
        lines.extend(line for line in fleet.lines if line["request_id"] == name)
        return bool(lines)

    await until(there)
    return lines[0]


async def say(fleet: Fleet, word: str, stream: bool = False) -> tuple[int, str]:
    """Return the status, and the code of an error or the way in which the answer broke, once the gateway knows of its end."""
    body = {"model": "smol", "messages": [{"role": "user", "content": word}], "stream": stream}
    async with fleet.http.post(f"{fleet.url}/team/chat/v1/chat/completions", json=body) as response:
        try:
            text = await response.text()
        except ClientPayloadError:
            text = '{"error": {"code": "cut"}}'
    await known(fleet, response)
    error = json.loads(text).get("error", {}) if text.startswith("{") else {}
    return response.status, error.get("code", "")


@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_a_request_that_cuts_connections_meets_its_first_tries_and_at_most_one_pod_more(
    fleet: Fleet, retries: int
) -> None:
    engines = await mortals(fleet, 5)
    fleet.serve((STABLE, 100), retries=retries)
    answers = []
    for _ in range(6):
        answers.append(await say(fleet, "end"))
        assert await say(fleet, "hello") == (200, ""), "others are answered as before"
    first = [(503, "upstream_unavailable")] * (2 if retries == 0 else 1)
    assert answers == first + [(422, "request_ends_engines")] * (6 - len(first))
    assert sum(engine.ended for engine in engines) == max(2, 1 + retries)


async def test_an_answer_that_was_cut_after_it_began_counts_too(fleet: Fleet) -> None:
    engines = await mortals(fleet, 4)
    fleet.serve((STABLE, 100))
    answers = [await say(fleet, "end later", stream=True) for _ in range(4)]
    assert answers == [(200, "cut")] * 2 + [(422, "request_ends_engines")] * 2
    assert sum(engine.ended for engine in engines) == 2


async def test_a_request_that_was_only_near_is_retried_and_cleared(fleet: Fleet) -> None:
    dying, *others = [await fleet.engine(STABLE, first_token=0.3) for _ in range(3)]
    fleet.serve((STABLE, 100))
    asked = [asyncio.create_task(say(fleet, "hello")) for _ in range(9)]
    await until(lambda: len(dying.requests) > 0)
    dying.die()
    assert set(await asyncio.gather(*asked)) == {(200, "")}
    await until(lambda: len(fleet.lines) == 9)
    others[0].die()
    assert await asyncio.gather(*(say(fleet, "hello") for _ in range(4))) == [(200, "")] * 4


@dataclass
class Cutting(Engine):
    """An engine that dies of whatever it has first, and whose answers to retries wait."""

    cuts: bool = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.cuts and request.headers["x-envoy-attempt-count"] == "1" and request.transport is not None:
            request.transport.abort()
            await asyncio.sleep(10)
        if self.cuts and self.gate is not None:
            await self.gate.acquire()
        return await super().answer(request)


async def test_a_body_that_many_send_keeps_its_retries_when_an_engine_dies(fleet: Fleet) -> None:
    engines = await join(
        fleet, [Cutting(f"127.0.0.{number}", STABLE, gate=asyncio.Semaphore(0)) for number in (81, 82, 83)]
    )
    fleet.serve((STABLE, 100))
    assert await say(fleet, "hello") == (200, "")
    for engine in engines:
        engine.cuts = True
    body = {"model": "smol", "messages": [{"role": "user", "content": "hello"}], "stream": False}
    known_by, deaths = content(("team", "chat"), json.dumps(body).encode()), fleet.gateway.ledger.deaths
    first = asyncio.create_task(say(fleet, "hello"))
    await until(lambda: deaths.count(known_by) == 1)
    second = asyncio.create_task(say(fleet, "hello"))
    await until(lambda: sum(len(engine.requests) for engine in engines) == 5)  # both have been tried again
    for engine in engines:
        for _ in range(2):
            engine.gate.release()
    assert await asyncio.gather(first, second) == [(200, "")] * 2
    assert deaths.count(known_by) == 0


async def test_a_request_that_ends_real_engines_meets_two_and_no_third(fleet: Fleet, tmp_path: Path) -> None:
    """Their API process lives on and reports it: 503 to the first try, which is sent on, and 500 to the retry."""
    model = make_model(tmp_path / "model")
    async with pods(fleet, model, tmp_path, FIRST, count=3) as engines:

        async def ask(**parameters: Any) -> tuple[int, str, int]:
            """Return the status, an error's code, and the number of pods that the request was routed to."""
            body = {"model": NAME, "prompt": "hi", "max_tokens": 8, "ignore_eos": True, **parameters}
            async with fleet.http.post(fleet.url + PATH, json=body) as response:
                last = (await response.text()).strip().rpartition("data: ")[2]
            document = {} if last == "[DONE]" else json.loads(last)
            line = await known(fleet, response)
            return response.status, document.get("error", {}).get("code", ""), line["attempts"]

        assert await ask() == (200, "", 1)
        # What an engine outlives is never sent on.
        assert await ask(**fault(RAISES)) == (500, "request_failed", 1)
        beside = asyncio.create_task(ask(max_tokens=2000, temperature=0))
        await until(lambda: len(fleet.gateway.ledger) == 1)  # its pod is the busiest from now on
        assert await ask(**fault(KILLS)) == (500, "engine_died", 2)
        assert (await ask(**fault(KILLS)))[:2] == (422, "request_ends_engines")
        assert (await beside)[:2] == (200, ""), "it was on the third"
        assert (await ask())[:2] == (200, "")
        await until(lambda: sum(engine.process.returncode is not None for engine in engines.serving) == 2)
        # Another such request ends the last engine, after its first tokens: the trailer says so.
        stream = {**fault(KILLS, after=3), "stream": True}
        assert (await ask(**stream))[:2] == (200, "engine_died")
        body = {"model": NAME, "prompt": "hi", "max_tokens": 8, "ignore_eos": True, **stream}
        known_by = content(("team", "chat"), json.dumps(body).encode())
        assert fleet.gateway.ledger.deaths.count(known_by) == 1, fleet.lines[-1]
