"""A stream that has begun ends as a stream, whatever goes wrong: with an error event, never with a second response."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from pagefleet_engine.api.answers.answer import Piece
from pagefleet_engine.api.answers.shapes import Shape
from pagefleet_engine.api.answers.streams import Stream
from pagefleet_engine.api.base.errors import ApiError


class Events:
    """What a client was sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.ended: dict[str, Any] | None = None
        self.response = "the response"

    @property
    def begun(self) -> bool:
        return bool(self.sent)

    async def send(self, *documents: dict[str, Any]) -> None:
        self.sent += json.loads(json.dumps(documents))

    async def end(self, **how: Any) -> None:
        self.ended = how


def stream(error: Exception, *pieces: str) -> tuple[Stream, Events]:
    async def batches() -> AsyncGenerator[list[tuple[int, Piece]]]:
        for text in pieces:
            yield [(0, Piece(text))]
        raise error

    asked = SimpleNamespace(echo=False, include_usage=False, continuous_usage=False)
    plan = SimpleNamespace(parameters=asked)
    generation: Any = SimpleNamespace(plan=plan, pieces=batches, parsed=False, logprobs=lambda *_: None)
    events: Any = Events()
    return Stream(generation, Shape("id", "m", chat=False), events), events


@pytest.mark.parametrize(
    ("error", "code"), [(KeyError("x"), "internal_error"), (ApiError(503, "gone", code="engine_died"), "engine_died")]
)
async def test_an_error_after_the_first_event_is_the_last_event(error: Exception, code: str) -> None:
    made, events = stream(error, "a")
    assert await made.run() == "the response"  # type: ignore[comparison-overlap]
    assert [document.get("error", {}).get("code") for document in events.sent] == [None, code]
    assert events.ended == {"done": False, "error": code}


@pytest.mark.parametrize("error", [KeyError("x"), ApiError(503, "gone")])
async def test_an_error_before_the_first_event_is_an_error_status(error: Exception) -> None:
    made, events = stream(error)
    with pytest.raises(type(error)):
        await made.run()
    assert events.ended is None


async def test_nothing_is_sent_to_a_client_that_has_gone() -> None:
    made, events = stream(ConnectionResetError(), "a")
    with pytest.raises(ConnectionResetError):
        await made.run()
    assert len(events.sent) == 1
