"""Answers as server-sent events, several of them interleaved in one stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from aiohttp import web

from pagefleet_engine.api.answers.answer import Piece
from pagefleet_engine.api.answers.events import Events
from pagefleet_engine.api.answers.generation import Generation
from pagefleet_engine.api.answers.shapes import Shape
from pagefleet_engine.api.base.errors import ApiError
from pagefleet_engine.api.base.in_thread import run_in_thread
from pagefleet_engine.api.base.logs import log


async def fail(events: Events, error: Exception, document: Callable[[ApiError], Mapping[str, Any]]) -> None:
    """End a stream that has begun with an event: its headers are gone. Raises the error where it has not.

    `document` makes the event. An error that nobody foresaw is logged.
    """
    if not events.begun:
        raise error
    if isinstance(error, ApiError):
        shown = error
    else:
        log("error", f"{type(error).__name__}: {error}")
        shown = ApiError(500, "internal error", code="internal_error")
    await events.send(document(shown))
    await events.end(done=False, error=shown.code)


class Stream:
    """The stream of one request. The first chunk of each answer states its role, or echoes its prompt."""

    def __init__(self, generation: Generation, shape: Shape, events: Events) -> None:
        self._generation, self._shape, self._events = generation, shape, events
        self._parameters = generation.plan.parameters
        self._parsed = generation.parsed
        self._opened: dict[int, int] = {}  # answers that began, and the length of their echo

    async def run(self) -> web.StreamResponse:
        async with aclosing(self._generation.pieces()) as batches:
            try:
                await self._send(batches)
            except ConnectionError:
                raise
            except Exception as error:
                await fail(self._events, error, ApiError.document)
            else:
                if self._parameters.include_usage:
                    await self._events.send(self._shape.chunk([], {"usage": self._generation.usage.document()}))
                await self._events.end(done=True, tokens=self._generation.usage.completion)
        return self._events.response

    async def _send(self, batches: AsyncGenerator[list[tuple[int, Piece]]]) -> None:
        async for batch in batches:
            opening = [at for at, _ in batch if at not in self._opened]
            size = self._generation.echoed(opening) if self._parameters.echo else 0
            choices = await run_in_thread(size, lambda batch=batch: self._choices(batch))  # type: ignore[misc]
            await self._events.send(*(self._shape.chunk([choice], self._usage()) for choice in choices))

    def _choices(self, batch: list[tuple[int, Piece]]) -> list[dict[str, Any]]:
        choices = []
        for at, piece in batch:
            if at not in self._opened:
                choices += self._open(at)
            choices += self._chunks(at, piece)
        return choices

    def _open(self, at: int) -> list[dict[str, Any]]:
        self._opened[at] = 0
        if self._shape.chat:
            return [self._shape.choice(at, {"delta": {"role": "assistant", "content": ""}}, None, None)]
        if not self._parameters.echo:
            return []
        text, scored = self._generation.echo(at)
        self._opened[at] = len(text)
        return [self._shape.choice(at, {"text": text}, self._generation.logprobs(scored, first=True), None)]

    def _chunks(self, at: int, piece: Piece) -> list[dict[str, Any]]:
        logprobs = self._generation.logprobs(piece.scored, self._opened[at]) if piece.scored else None
        if not self._shape.chat:
            return [self._shape.choice(at, {"text": piece.text}, logprobs, piece.finish)]
        if not self._parsed:
            deltas: list[dict[str, Any]] = [{"content": piece.text} if piece.text else {}]
        else:
            deltas = [delta.document() for delta in piece.deltas]
            if not deltas and (logprobs or piece.finish):
                deltas = [{}]
        last = len(deltas) - 1
        return [
            self._shape.choice(
                at, {"delta": delta}, None if index else logprobs, piece.finish if index == last else None
            )
            for index, delta in enumerate(deltas)
        ]

    def _usage(self) -> Mapping[str, Any] | None:
        if self._parameters.continuous_usage:
            return {"usage": self._generation.usage.document()}
        return {"usage": None} if self._parameters.include_usage else None
