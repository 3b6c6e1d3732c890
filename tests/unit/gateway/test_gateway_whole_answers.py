"""Protects the load-adjusted times of whole answers: they have an expectation of their own, which streams teach nothing, to the end of
the answer, and are in an entry of their own in /windows."""

from __future__ import annotations

import pytest
from support.virtual.gateway import STABLE, VirtualGateway

from pagefleet_contract.sketch import merged, total
from pagefleet_gateway.picking.expected import MIN_MEASUREMENTS
from pagefleet_operator.domain.status.observation import Slice

ONLY_STABLE = ((STABLE, 100),)


def unlike(number: int, length: int = 400) -> str:
    """A prompt that shares no beginning with another."""
    return f"{number:06}" + "x" * (length - 6)


def expected(gateway: VirtualGateway, request: str) -> float | None:
    opened = gateway.ledger.ticket(request)
    assert opened is not None
    seconds: float | None = opened.expected
    return seconds


def add(piece: Slice, field: str) -> dict[int, int]:
    return merged([getattr(one, field) for one in piece.load.values()])


def test_whole_answers_have_an_expectation_of_their_own_to_their_end() -> None:
    gateway = VirtualGateway(pods=1, weights=ONLY_STABLE)
    begin = 0.0
    for number in range(MIN_MEASUREMENTS):
        request, _ = gateway.send(begin, unlike(number))
        gateway.first_token(request, 0.1, begin + 0.1)
        gateway.end(request, begin + 0.11)
        begin += 2.0
    for number in range(MIN_MEASUREMENTS):
        request, _ = gateway.send(begin, unlike(200 + number), stream=False)
        assert expected(gateway, request) is None, "streams teach it nothing"
        gateway.end(request, begin + 3.0)
        begin += 4.0
    stream, _ = gateway.send(begin, unlike(800))
    assert expected(gateway, stream) == pytest.approx(0.1, rel=0.1)
    gateway.first_token(stream, 0.1, begin + 0.1)
    gateway.end(stream, begin + 0.11)
    whole, _ = gateway.send(begin + 0.12, unlike(801), stream=False)
    assert expected(gateway, whole) == pytest.approx(3.0, rel=0.1)
    failed, _ = gateway.send(begin + 0.2, unlike(900), stream=False)
    gateway.windows.tick(begin + 2.0)
    gateway.end(failed, begin + 2.5, code=503)
    gateway.windows.tick(begin + 4.0)
    gateway.end(whole, begin + 6.1)
    pieces = [piece for piece in gateway.slices(begin + 12.0) if piece.whole and piece.start >= begin]
    assert [total(add(piece, "waiting")) for piece in pieces] == [2, 1, 1, 0]
    assert [sum(total(add(piece, field)) for piece in pieces) for field in ("relative", "ttft", "unmeasured")] == [
        1,
        1,
        1,
    ]
    assert total(add(pieces[-1], "relative")) == 1 and pieces[-1].pods == {
        gateway.pods[0].name: add(pieces[-1], "relative")
    }


def test_an_answer_that_streams_unasked_is_a_whole_one() -> None:
    gateway = VirtualGateway(pods=1, weights=ONLY_STABLE)
    begin = 0.0
    for number in range(MIN_MEASUREMENTS + 1):
        request, _ = gateway.send(begin, unlike(number), stream=False)
        gateway.end(request, begin + 3.0, ttft_us=1e5, content_type="text/event-stream")
        begin += 4.0
    request, _ = gateway.send(begin, unlike(900), stream=False)
    assert expected(gateway, request) == pytest.approx(3.0, rel=0.1)
    pieces = [piece for piece in gateway.slices(begin + 4.0) if piece.adjusted]
    assert all(piece.whole for piece in pieces) and sum(total(add(piece, "relative")) for piece in pieces) == 1
