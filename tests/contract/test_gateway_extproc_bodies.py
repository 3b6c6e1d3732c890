"""Protects what the endpoint picker reads of bodies that pass by: a request is picked for once and timed from its last byte, and an
answer has an error where one of its events is one, wherever that is cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as proto
from support.gateway.ext_proc import BODY, World, endpoints, serving

STREAM = {"content_type": "text/event-stream"}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with serving() as found:
        yield found


async def test_a_streamed_body_after_the_pick_does_not_pick_again(world: World) -> None:
    call = world.call()
    await call.request(mode="STREAMED", answer="STREAMED", path="/team/chat/v1/completions")
    answer = await call.read()
    endpoints(answer, answer.request_headers.response)
    opened = sum(world.ledger.take_opened().values())
    await call.body(BODY[:10], end=False)
    await call.read()
    await call.body(BODY[10:], end=True)
    await call.read()
    again = sum(world.ledger.take_opened().values())
    assert (opened, again) == (1, 0)


async def test_words_within_an_answer_are_no_error_event(world: World) -> None:
    call = world.call()
    chosen = await call.pick(answer="STREAMED")
    await call.answered(chosen[0], **STREAM)
    words = b'data: {"choices": [{"index": 0, "delta": {"content": "event: response.failed"}}]}\n\n'
    for piece, end in ((words, False), (b"data: [DONE]\n\n", True)):
        await call.send(response_body=proto.HttpBody(body=piece, end_of_stream=end))
        await call.read()
    await call.end()
    (ended,) = world.ended
    assert ended is not None and not ended.outcome.failed


async def test_a_slow_upload_is_no_part_of_the_time_to_first_token(world: World) -> None:
    call = world.call()
    await call.request(mode="BUFFERED", answer="STREAMED")
    await call.read()
    await asyncio.sleep(1.0)  # the upload
    await call.body(BODY)
    answer = await call.read()
    chosen = endpoints(answer, answer.request_body.response)
    await call.answered(chosen[0], **STREAM)
    piece = b'data: {"choices": [{"index": 0, "delta": {"content": "hi"}}]}\n\n'
    await call.send(response_body=proto.HttpBody(body=piece, end_of_stream=True))
    await call.read()
    await call.end()
    (line,) = world.lines
    assert line.ttft is not None and line.ttft < 0.5 and line.duration < 0.5, (line.ttft, line.duration)


async def test_an_error_event_in_two_pieces_is_one(world: World) -> None:
    call = world.call()
    chosen = await call.pick(answer="STREAMED")
    await call.answered(chosen[0], **STREAM)
    token = b'data: {"choices": [{"index": 0, "delta": {"content": "hi"}}]}\n\n'
    error = b'data: {"error": {"message": "no page left"}}\n\n'
    for piece, end in ((token, False), (error[:9], False), (error[9:], True)):
        await call.send(response_body=proto.HttpBody(body=piece, end_of_stream=end))
        await call.read()
    await call.end()
    (ended,) = world.ended
    assert ended is not None and ended.outcome.failed
