"""One answer to one conversation in another protocol: generated as a chat completion, written by the protocol's writer."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing

from aiohttp import web

from pagefleet_contract.headers import CLIENT_HEADER
from pagefleet_engine.api.answers import shapes
from pagefleet_engine.api.answers.answer import Piece
from pagefleet_engine.api.answers.events import Events
from pagefleet_engine.api.answers.generation import Generation
from pagefleet_engine.api.answers.logprobs import Vocabulary
from pagefleet_engine.api.answers.streams import fail
from pagefleet_engine.api.backend.engine import EngineClient
from pagefleet_engine.api.observability import traces
from pagefleet_engine.api.observability.metrics import Metrics
from pagefleet_engine.api.parameters import Parameters
from pagefleet_engine.api.parsing.deltas import Delta
from pagefleet_engine.api.planning.plan import Planner
from pagefleet_engine.api.protocols.renaming import renamed
from pagefleet_engine.api.protocols.writing import Json, Writer
from pagefleet_engine.model.text.tokenizer import Tokenizer

Finish = Callable[[], None]


class Turns:
    """Runs the requests of both protocols on one served model."""

    def __init__(
        self, planner: Planner, client: EngineClient, tokenizer: Tokenizer, metrics: Metrics, write_timeout: float
    ) -> None:
        self.planner, self.tokenizer = planner, tokenizer
        self._client, self._metrics, self._write_timeout = client, metrics, write_timeout
        self._words = Vocabulary(tokenizer)

    async def answer(
        self,
        request: web.Request,
        parameters: Parameters,
        timeout: float | None,
        writer: Writer,
        names: Mapping[str, str],
        finished: Finish = lambda: None,
    ) -> web.StreamResponse:
        """Generate and answer, whole or streamed. `names`: the protocol's names of fields, by those of chat completions.

        `finished` is called once the answer is complete.
        """
        with renamed(names):
            plan = await self.planner.plan(parameters, time.monotonic(), timeout)
        generation = Generation(plan, self._client, self.tokenizer, self._words, self._metrics)
        turn = _Turn(generation, writer)
        try:
            if parameters.stream:
                return await self._stream(request, turn, finished)
            async with aclosing(generation.pieces()) as batches:
                async for batch in batches:
                    for _, piece in batch:
                        turn.take(piece)
            finished()
            return shapes.answer(writer.document, generation.usage.prompt, generation.usage.completion)
        finally:
            used = generation.usage
            traces.annotate(request, "chat", writer.document["id"], parameters.model, used.prompt, used.completion)

    async def _stream(self, request: web.Request, turn: _Turn, finished: Finish) -> web.StreamResponse:
        generation, writer = turn.generation, turn.writer
        events = Events(request, self._write_timeout, generation.usage.prompt, named=True)
        async with aclosing(generation.pieces()) as batches:
            try:
                async for batch in batches:
                    made: list[Json] = [] if events.begun else writer.begin(generation.usage)
                    for _, piece in batch:
                        made += turn.take(piece)
                    if made:
                        await events.send(*made)
            except ConnectionError:
                raise
            except Exception as error:
                await fail(events, error, writer.failure)
            else:
                finished()
                await events.end(done=False, tokens=generation.usage.completion)
        return events.response


class _Turn:
    def __init__(self, generation: Generation, writer: Writer) -> None:
        self.generation, self.writer = generation, writer
        self._logprobs: list[Json] = []  # of content that the parser holds back
        self._thinks = False

    def take(self, piece: Piece) -> list[Json]:
        deltas = piece.deltas if self.generation.parsed else (Delta(content=piece.text),) if piece.text else ()
        scored = self.generation.logprobs(piece.scored) if piece.scored else None
        self._logprobs += scored["content"] if scored is not None else []
        made: list[Json] = []
        for delta in deltas:
            made += self.writer.take(delta, self._logprobs if delta.content else ())
            self._logprobs = [] if delta.content else self._logprobs
            self._thinks = bool(delta.reasoning)
        if self._thinks or (deltas and not deltas[-1].content):
            self._logprobs = []  # of reasoning, its tags, or a call
        if piece.finish is not None:
            made += self.writer.end(piece.finish, self.generation.answers[0].stop, self.generation.usage)
        return made


def owner(request: web.Request) -> bytes:
    """Return a digest of the request's key, and of the client's name at a gateway: who may see what it stores. A gateway with API keys
    presents one key of the engine for all of its clients, and names each."""
    key = request.headers.get("Authorization", "") or request.headers.get("X-Api-Key", "")
    both = f"{key}\n{request.headers.get(CLIENT_HEADER, '')}"
    return hashlib.sha256(both.encode("utf-8", "surrogateescape")).digest()
