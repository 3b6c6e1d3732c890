"""Protects pods and canaries from clients that do not read their answers: a time limit that ends one is not the engine's failure."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.gateway.fleet import STABLE, chunk, running, until

BODY = b'{"model":"smol","stream":true,"messages":[]}'
HEAD = b"POST /team/chat/v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
LIMITS: tuple[dict[str, Any], ...] = (
    {"next_token_seconds": 1.0},
    {"timeout_seconds": 2.0},
    {"first_token_seconds": 0.5, "next_token_seconds": 1.0, "retries": 0},
)


@pytest.mark.parametrize("limits", LIMITS)
async def test_a_time_limit_that_ends_an_unread_answer_is_not_the_pod_s(limits: dict[str, Any]) -> None:
    event = b"data: " + json.dumps(chunk("x" * 60_000)).encode() + b"\n\n"
    async with running(workers=1) as fleet:
        engine = await fleet.engine(STABLE, pieces=(event,) * 300)  # 18 MB: more than all buffers between
        fleet.serve((STABLE, 100), **limits)
        _, writer = await asyncio.open_connection("127.0.0.1", fleet.gateway.port, limit=1024)
        writer.write(HEAD % len(BODY) + BODY)
        await until(lambda: bool(fleet.lines), 15)
        writer.close()
        (line,) = fleet.lines
        assert line["end"] == "left", line
        assert not fleet.gateway.ledger.outliers.has_failed(engine.pod().uid)
