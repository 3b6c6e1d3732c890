"""What another gateway reports of a request, over plain gRPC, and what the picker takes from it.

Protects that served endpoints and ends come back to the ledger, output tokens and deaths of engines from headers and
trailers, that the first token is the first event with content, and that an answer counts only from a picked endpoint.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as proto
from support.gateway.ext_proc import World, pod, serving

from pagefleet_gateway.measuring.slices import End


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with serving() as found:
        yield found


async def test_the_served_endpoint_tells_which_pods_failed(world: World) -> None:
    call = world.call()
    chosen = await call.pick()
    assert world.ledger.in_flight(pod(int(chosen[0].split(".")[3][0]))) == 1
    assert await call.answered(chosen[1]) == {"x-pagefleet-revision": "aaaaaaaa"}
    await call.end()
    (ended,) = world.ended
    assert ended is not None and not ended.outcome.failed
    failed = {number for number in (1, 2, 3) if world.ledger.ejected(pod(number), 1.0)}
    assert [f"10.0.0.{number}:8000" for number in failed] == [chosen[0]]
    assert len(world.ledger) == 0
    assert (await world.call().pick())[2] == chosen[0]  # left alone for a while


async def test_output_tokens_are_taken_from_the_engines_headers_or_trailers(world: World) -> None:
    for number, header in enumerate(({"x_pagefleet_output_tokens": "12"}, {})):
        call = world.call()
        chosen = await call.pick(answer="NONE" if header else "STREAMED")
        await call.answered(chosen[0], **header)
        if not header:
            trailer = base_pb2.HeaderValue(key="x-pagefleet-output-tokens", raw_value=b"34")
            await call.send(response_trailers=proto.HttpTrailers(trailers=base_pb2.HeaderMap(headers=[trailer])))
            assert (await call.read()).HasField("response_trailers")
        await call.end()
        ended = world.ended[number]
        assert ended is not None
        assert ended.outcome.tokens == (12 if header else 34)


USAGE = b'"usage": {"prompt_tokens": 21, "completion_tokens": 7, "total_tokens": 28}}'
FORGED = b'{"choices": [{"text": "\\"completion_tokens\\": 1, \\"prompt_tokens\\": 1"}], '


@pytest.mark.parametrize(
    ("mode", "headers", "pieces", "expected"),
    [
        ("STREAMED", {}, (FORGED, USAGE[:30], USAGE[30:]), (21, 7, len(FORGED + USAGE))),
        ("FULL_DUPLEX_STREAMED", {}, (FORGED + USAGE,), (21, 7, len(FORGED + USAGE))),
        ("STREAMED", {"x_pagefleet_prompt_tokens": "5"}, (USAGE,), (5, 7, len(USAGE))),
        ("STREAMED", {}, (FORGED,), (None, None, len(FORGED))),
        ("NONE", {"x_pagefleet_prompt_tokens": "5"}, (), (5, None, None)),
    ],
    ids=["usage in pieces", "usage at once", "our engine's header", "no usage", "no body"],
)
async def test_quotas_are_settled_with_the_engine_s_tokens(
    world: World,
    mode: str,
    headers: dict[str, str],
    pieces: tuple[bytes, ...],
    expected: tuple[int | None, int | None, int | None],
) -> None:
    """A header comes before the body's `usage`, and text that looks like one is none. Without tokens the bytes count."""
    call = world.call()
    chosen = await call.pick(answer=mode)
    await call.answered(chosen[0], **headers)
    for number, piece in enumerate(pieces, 1):
        await call.send(response_body=proto.HttpBody(body=piece, end_of_stream=number == len(pieces)))
        await call.read()
    await call.end()
    (line,) = world.lines
    assert (line.prompt_tokens, line.tokens, line.body_bytes) == expected


async def test_a_client_that_goes_away_leaves_nothing_behind(world: World) -> None:
    call = world.call()
    await call.pick()
    assert len(world.ledger) == 1
    call.stream.cancel()
    await asyncio.wait_for(world.settled.wait(), 10)
    assert len(world.ledger) == 0
    (ended,) = world.ended
    assert ended is not None and ended.outcome.end is End.LEFT


@pytest.mark.parametrize("place", ["header", "trailer"])
async def test_an_engine_s_death_is_read_from_a_header_or_a_trailer_and_bounds_the_next_try(
    world: World, place: str
) -> None:
    chosen: list[str] = []
    for deaths in range(1, 3):
        call = world.call()
        chosen = await call.pick(answer="STREAMED")
        assert len(chosen) == (3 if deaths == 1 else 1)
        world.pods(*(pod(number) for number in (1, 2, 3) if f"10.0.0.{number}:8000" != chosen[0]))
        headers = {"x_pagefleet_error": "engine_died"} if place == "header" else {}
        await call.answered(chosen[0], "503" if place == "header" else "200", **headers)
        if place == "trailer":
            raw = base_pb2.HeaderValue(key="x-pagefleet-error", raw_value=b"engine_died")
            await call.send(response_trailers=proto.HttpTrailers(trailers=base_pb2.HeaderMap(headers=[raw])))
            assert (await call.read()).HasField("response_trailers")
        world.settled.clear()
        await call.end()
        await asyncio.wait_for(world.settled.wait(), 10)
    refusal = await world.call().refusal()
    assert refusal.status.code == 422 and b"request_ends_engines" in refusal.body


STREAM = {"content_type": "text/event-stream"}
ROLE = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n'
TOKEN = b'data: {"choices": [{"index": 0, "delta": {"content": "hi"}}]}\n\n'


@pytest.mark.parametrize("mode", ["STREAMED", "FULL_DUPLEX_STREAMED"])
async def test_the_first_token_is_the_first_event_with_content(world: World, mode: str) -> None:
    call = world.call()
    chosen = await call.pick(answer=mode)
    await call.answered(chosen[0], **STREAM)
    await call.send(response_body=proto.HttpBody(body=ROLE))
    await call.read()
    before = time.monotonic()
    await asyncio.sleep(0.05)
    for number, piece in enumerate((TOKEN[:20], TOKEN[20:], TOKEN)):
        await call.send(response_body=proto.HttpBody(body=piece, end_of_stream=number == 2))
        await call.read()
    await call.end()
    (line,) = world.lines
    assert line.ttft is not None and 0.05 <= line.ttft <= line.duration < time.monotonic() - before + 5
    assert line.streamed


async def test_without_the_answers_body_no_time_to_first_token_is_claimed(world: World) -> None:
    call = world.call()
    chosen = await call.pick(answer="NONE")
    await call.answered(chosen[0], **STREAM)
    await call.end()
    (line,) = world.lines
    (ended,) = world.ended
    assert line.ttft is None and line.streamed
    assert ended is not None and ended.outcome.ttft is None


async def test_an_answer_counts_only_from_a_picked_endpoint(world: World) -> None:
    """A gateway's own 5xx without an endpoint counts: it reports that it reached none of them."""
    for served, status, counts in (
        ("10.0.0.9:8000", "200", 0),
        ("", "200", 0),
        ("10.0.0.9:8000", "503", 0),
        ("", "503", 1),
    ):
        world.lines.clear()
        dropped = len(world.dropped)
        call = world.call()
        await call.pick()
        await call.answered(served, status)
        world.settled.clear()
        await call.end()
        await asyncio.wait_for(world.settled.wait(), 10)
        assert (len(world.lines), len(world.dropped) - dropped) == (counts, 1 - counts), (served, status)
        assert len(world.ledger) == 0


async def test_a_gateway_that_names_no_modes_and_sends_bodies_is_measured_to_the_end(world: World) -> None:
    call = world.call()
    chosen = await call.pick(answer="NONE")
    await call.answered(chosen[0], **STREAM)
    await call.send(response_body=proto.HttpBody(body=TOKEN))
    await call.read()
    await call.end()
    (line,) = world.lines
    assert line.ttft is not None and line.flags == {"DC"}, "its end did not come: the client went away"


@pytest.mark.parametrize("before", [ROLE, TOKEN])
async def test_an_error_event_within_a_200_is_the_revisions_failure(world: World, before: bytes) -> None:
    call = world.call()
    chosen = await call.pick(answer="STREAMED")
    await call.answered(chosen[0], **STREAM)
    for piece, end in ((before, False), (b'data: {"error": {"message": "no page left"}}\n\n', True)):
        await call.send(response_body=proto.HttpBody(body=piece, end_of_stream=end))
        await call.read()
    await call.end()
    (line,), (ended,) = world.lines, world.ended
    assert ended is not None and ended.outcome.failed
    assert (line.ttft is None) is (before == ROLE)
