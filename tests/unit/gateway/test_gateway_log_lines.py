"""Protects picks from Envoy's access log: the lines that it writes at once are read in turns, between which requests are answered."""

from __future__ import annotations

import asyncio
import json

from pagefleet_gateway.measuring.access_log import FailedAttempt, LogLine
from pagefleet_gateway.measuring.log_lines import TURN_LINES, log_lines

LINES = 100


def _line(number: int) -> bytes:
    return json.dumps({"id": str(number), "code": 200, "flags": "-", "attempts": 1}).encode() + b"\n"


async def _read(data: bytes, limit: int = 1 << 16) -> list[tuple[str, int]]:
    """The ids that were read, and at each how many turns of the event loop there had been."""
    reader, turns, found = asyncio.StreamReader(limit=limit), 0, list[tuple[str, int]]()
    reader.feed_data(data)
    reader.feed_eof()

    def turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(turn)

    turn()
    async for line in log_lines(reader):
        found.append((line.id, turns))
    return found


def test_other_work_gets_its_turn_between_lines_that_were_written_at_once() -> None:
    found = asyncio.run(_read(b"".join(map(_line, range(LINES)))))
    assert [name for name, _ in found] == [str(number) for number in range(LINES)]
    at = [turns for _, turns in found]
    assert max(at.count(turn) for turn in set(at)) <= TURN_LINES
    assert len(set(at)) >= LINES // TURN_LINES


def test_lines_that_are_too_long_or_no_access_log_are_left_out() -> None:
    data = _line(1) + b"[info] text\n" + b'{"id": "' + b"x" * 500 + b'"}\n' + _line(2)
    assert [name for name, _ in asyncio.run(_read(data, limit=200))] == ["1", "2"]


def test_failed_attempts_are_told_from_ends() -> None:
    async def kinds() -> list[type]:
        reader = asyncio.StreamReader()
        reader.feed_data(_line(1) + b'{"id": "1", "attempt": "10.0.0.1:8000", "flags": "UF"}\n')
        reader.feed_eof()
        return [type(line) async for line in log_lines(reader)]

    assert asyncio.run(kinds()) == [LogLine, FailedAttempt]
