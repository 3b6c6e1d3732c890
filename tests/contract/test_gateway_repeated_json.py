"""Protects quotas and measurements from JSON of a client that an engine repeats in its answer, such as the schemas of tools in the
Responses API: only the engine's own usage counts."""

from __future__ import annotations

import json

import pytest
from support.gateway import fleet as fleets
from support.gateway.fleet import STABLE, running, until

from pagefleet_gateway.fronts.answer_size import AnswerSize

NOTHING = {"completion_tokens": 0, "prompt_tokens": 0}
TOOLS = [
    {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}, **NOTHING, "usage": NOTHING}}
]
USAGE = {
    "input_tokens": 21, "input_tokens_details": {"cached_tokens": 1}, "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 28,
}  # fmt: skip


def test_another_gateway_s_answer() -> None:
    size = AnswerSize()
    size.feed(json.dumps({"object": "response", "output": [], "tools": TOOLS, "usage": USAGE, "user": None}).encode())
    assert (size.prompt_tokens, size.output_tokens) == (21, 7)


def test_messages_tell_their_prompt_at_the_start_and_their_tokens_at_the_end() -> None:
    size = AnswerSize()
    size.feed(b'data: {"type":"message_start","message":{"usage":{"input_tokens":21,"output_tokens":1}}}\n\n')
    size.feed(b'data: {"type":"message_delta","delta":{},"usage":{"output_tokens":7}}\n\n')
    assert (size.prompt_tokens, size.output_tokens) == (21, 7)


async def test_an_answer_through_envoy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "completion", lambda text: {"object": "response", "output": [], "tools": TOOLS})
    monkeypatch.setattr(fleets, "USAGE", USAGE)
    async with running() as fleet:
        await fleet.engine(STABLE, token_report="usage")
        fleet.serve((STABLE, 100))
        await fleet.chat()
        await until(lambda: bool(fleet.lines))
        assert fleet.lines[0]["output_tokens"] == 7
