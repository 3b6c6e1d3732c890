"""/v1/completions and /v1/chat/completions: generates within the limits, answers whole or as server-sent events.

Never sends a byte of a stream before the first token, and never ends a stream silently: a stream that cannot be
finished ends with an error event.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import Any

from aiohttp import web

from pagefleet_engine.api.answers import shapes
from pagefleet_engine.api.answers.answer import Piece
from pagefleet_engine.api.answers.events import Events
from pagefleet_engine.api.answers.generation import Generation
from pagefleet_engine.api.answers.logprobs import Vocabulary
from pagefleet_engine.api.answers.shapes import Shape
from pagefleet_engine.api.answers.streams import Stream
from pagefleet_engine.api.backend.engine import EngineClient
from pagefleet_engine.api.base.in_thread import run_in_thread
from pagefleet_engine.api.observability import traces
from pagefleet_engine.api.observability.metrics import Metrics
from pagefleet_engine.api.parameters import body, parse
from pagefleet_engine.api.parsing import deltas
from pagefleet_engine.api.planning.plan import Planner
from pagefleet_engine.model.text.tokenizer import Tokenizer


class Completions:
    """Both completion endpoints of one served model."""

    def __init__(
        self, planner: Planner, client: EngineClient, tokenizer: Tokenizer, metrics: Metrics, write_timeout: float
    ) -> None:
        self._planner, self._client, self._tokenizer = planner, client, tokenizer
        self._metrics, self._write_timeout = metrics, write_timeout
        self._words = Vocabulary(tokenizer)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=True)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=False)

    async def _answer(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        arrival, timeout = time.monotonic(), body.timeout(request)
        defaults = self._planner.rules.sampling_defaults
        parameters = parse(await body.document(request), chat=chat, defaults=defaults)
        plan = await self._planner.plan(parameters, arrival, timeout)
        shape = Shape(plan.id, parameters.model, chat=chat)
        operation = "chat" if chat else "text_completion"
        generation = Generation(plan, self._client, self._tokenizer, self._words, self._metrics, operation)
        try:
            if parameters.stream:
                events = Events(request, self._write_timeout, generation.usage.prompt)
                return await Stream(generation, shape, events).run()
            got: list[list[Piece]] = [[] for _ in generation.answers]
            async with aclosing(generation.pieces()) as batches:
                async for batch in batches:
                    for at, piece in batch:
                        got[at].append(piece)
            whole = await run_in_thread(generation.entries(), lambda: _whole(generation, shape, got))
            return shapes.answer(whole, generation.usage.prompt, generation.usage.completion)
        finally:
            used = generation.usage
            traces.annotate(request, operation, plan.id, parameters.model, used.prompt, used.completion)


def _whole(generation: Generation, shape: Shape, got: list[list[Piece]]) -> dict[str, Any]:
    """Return the whole document. `got`: the pieces of each answer."""
    choices: list[dict[str, Any]] = []
    for at in generation.chosen():
        text = "".join(piece.text for piece in got[at])
        scored = [one for piece in got[at] for one in piece.scored]
        finish = generation.answers[at].finish
        if shape.chat:
            message = _message(generation, got[at], text)
            choices.append(shape.choice(len(choices), {"message": message}, generation.logprobs(scored), finish))
            continue
        echo, before = generation.echo(at) if generation.plan.parameters.echo else ("", [])
        logprobs = generation.logprobs([*before, *(one.moved(len(echo)) for one in scored)], first=bool(before))
        choice = shape.choice(len(choices), {"text": echo + text}, logprobs, finish)
        choices.append({**choice, **generation.prompt_logprobs_document(at)})
    document = shape.whole(choices, generation.usage)
    return {**document, **generation.prompt_logprobs_document(0)} if shape.chat else document


def _message(generation: Generation, pieces: list[Piece], text: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if generation.parsed:
        message = deltas.message(delta for piece in pieces for delta in piece.deltas)
    return {**message, "refusal": None}
