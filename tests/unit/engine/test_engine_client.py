"""Protects what was computed before a request failed: it reaches the client, also when both arrive at one time."""

from __future__ import annotations

import asyncio

import pytest
from tokenizers import Tokenizer, models

from pagefleet_engine.api.answers.generation import Generation
from pagefleet_engine.api.answers.logprobs import Vocabulary
from pagefleet_engine.api.backend.engine import EngineClient, EngineDied, RequestFailed
from pagefleet_engine.api.base.errors import ApiError
from pagefleet_engine.api.observability.metrics import Metrics
from pagefleet_engine.api.parameters import Parameters
from pagefleet_engine.api.parsing.registry import Dialect, Style
from pagefleet_engine.api.planning.plan import Plan
from pagefleet_engine.core.messages import EngineStep
from pagefleet_engine.core.requests import EngineRequest, EngineStats, Finish, SamplingParams, TokenOutput
from pagefleet_engine.flags import EngineConfig
from pagefleet_engine.model.text.chat import ChatTemplates
from pagefleet_engine.model.text.tokenizer import Tokenizer as Words

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


@pytest.mark.parametrize(("stop", "sent", "late"), [("b", "a", False), ("c", "ab", True)])
def test_tokens_that_arrive_with_the_deadline_come_before_it(stop: str, sent: str, late: bool) -> None:
    """An answer that a stop string has ended is not late: the engine learns of the stop string later."""
    config = EngineConfig("file:///m")
    metrics, words = Metrics("m", config), Words(Tokenizer(models.BPE({"a": 0, "b": 1}, [])), (), ChatTemplates({}, {}))
    client, request = EngineClient(config, metrics), EngineRequest("r", (0,), SamplingParams(9), 0.0)
    plan = Plan("r", Parameters(model="m", prompts=("a",), stop=(stop,)), (request,), False, Dialect(Style.HERMES))
    generation = Generation(plan, client, words, Vocabulary(words), metrics)

    async def text() -> tuple[str, list[str | None], int]:
        answer = generation.pieces()
        first = asyncio.ensure_future(anext(answer))
        await asyncio.sleep(0)
        client._take(EngineStep([output(0), output(1)], STATS, 0.1))
        client._take(EngineStep([output(None, Finish.DEADLINE)], STATS, 0.1))
        pieces, status = await first, 200
        try:
            async for more in answer:
                pieces += more
        except ApiError as error:
            status = error.status
        return "".join(piece.text for _, piece in pieces), [piece.finish for _, piece in pieces], status

    found, finishes, status = asyncio.run(text())
    assert (found.replace(" ", ""), status) == (sent, 504 if late else 200)
    assert [one for one in finishes if one is not None] == ([] if late else ["stop"])


def test_a_deadline_without_a_token_is_the_only_answer() -> None:
    """The status tells it: nothing was sent that would have begun a stream."""
    config = EngineConfig("file:///m")
    metrics, words = Metrics("m", config), Words(Tokenizer(models.BPE({"a": 0, "b": 1}, [])), (), ChatTemplates({}, {}))
    client, request = EngineClient(config, metrics), EngineRequest("r", (0,), SamplingParams(9), 0.0)
    plan = Plan("r", Parameters(model="m", prompts=("a",)), (request,), False, Dialect(Style.HERMES))

    async def ask() -> None:
        first = asyncio.ensure_future(anext(Generation(plan, client, words, Vocabulary(words), metrics).pieces()))
        await asyncio.sleep(0)
        client._take(EngineStep([output(None, Finish.DEADLINE)], STATS, 0.1))
        with pytest.raises(ApiError, match="time is over"):
            await first

    asyncio.run(ask())
