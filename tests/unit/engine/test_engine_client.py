"""Protects what was computed before a request failed: it reaches the client, also when both arrive at one time."""

from __future__ import annotations

import asyncio

import pytest

from pagefleet_engine.api.backend.engine import EngineClient, EngineDied, RequestFailed
from pagefleet_engine.api.observability.metrics import Metrics
from pagefleet_engine.core.messages import EngineStep
from pagefleet_engine.core.requests import EngineRequest, EngineStats, Finish, SamplingParams, TokenOutput
from pagefleet_engine.flags import EngineConfig

STATS = EngineStats(1, 0, 100, 4, 5, 0, 0, 0, 9)


def output(token: int | None, finish: Finish | None = None) -> TokenOutput:
    return TokenOutput("r", () if token is None else (token,), finish.value if finish else None, 3, 0)


@pytest.mark.parametrize(("finish", "raised"), [(Finish.ERROR, RequestFailed), (Finish.ABORT, EngineDied)])
@pytest.mark.parametrize("steps", [1, 3])
def test_tokens_that_arrive_with_a_failure_come_before_it(finish: Finish, raised: type[Exception], steps: int) -> None:
    """`steps`: how many messages the outputs come in, all of which arrive before the client is asked again."""
    config = EngineConfig("file:///m")
    client, outputs = EngineClient(config, Metrics("m", config)), [output(7), output(8), output(None, finish)]

    async def tokens() -> list[int]:
        found: list[int] = []
        answer = client.generate([EngineRequest("r", (1, 2, 3), SamplingParams(9), 0.0)])
        first = asyncio.ensure_future(anext(answer))
        await asyncio.sleep(0)  # the request is open now
        for start in range(0, 3, 3 // steps):
            client._take(EngineStep(outputs[start : start + 3 // steps], STATS, 0.1))
        found += [token for one in await first for token in one.token_ids]
        with pytest.raises(raised):
            async for batch in answer:
                found += [token for one in batch for token in one.token_ids]
        return found

    assert asyncio.run(tokens()) == [7, 8]
    assert client.open == 0


def test_an_engine_s_end_comes_after_what_it_computed() -> None:
    config = EngineConfig("file:///m")
    client = EngineClient(config, Metrics("m", config))

    async def tokens() -> tuple[int, ...]:
        answer = client.generate([EngineRequest("r", (1, 2, 3), SamplingParams(9), 0.0)])
        first = asyncio.ensure_future(anext(answer))
        await asyncio.sleep(0)
        client._take(EngineStep([output(7)], STATS, 0.1))
        for one in client._open.values():
            one.queue.put_nowait(None)
        [found] = await first
        with pytest.raises(EngineDied):
            await anext(answer)
        return found.token_ids

    assert asyncio.run(tokens()) == (7,)
