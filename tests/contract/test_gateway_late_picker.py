"""Protects requests that come while the picker is late, as on a machine that is busy for a second: each waits in a connection of its own
until the picker accepts it, and none is refused, also where the picker has work for seconds afterwards. Real Envoy."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from support.gateway.fleet import running

from pagefleet_gateway import app
from pagefleet_gateway.envoy import timeouts
from pagefleet_gateway.fronts.hang_guard import HangGuard

REQUESTS = 1_500  # more than the 1,024 connections that were allowed to wait once
SECONDS = 60.0
# The picker itself answers it: there is no such service.
REQUEST = (
    b"POST /team/none/v1/completions HTTP/1.1\r\nhost: gateway\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
)


def connections(path: Path) -> int:
    """Return how many connections to a Unix socket there are, accepted or not."""
    rows = Path("/proc/net/unix").read_text().splitlines()
    return sum(row.endswith(f" {path}") for row in rows) - 1  # the listener is one of the rows


def status(client: socket.socket) -> str:
    client.settimeout(SECONDS)
    return client.recv(65536).split(b" ", 2)[1].decode()


def send_all(port: int, picker: Path, closing: AsyncExitStack) -> list[socket.socket]:
    """Send the requests, and wait until Envoy has asked for all picks. The event loop, which is the picker's too, stands still meanwhile."""
    clients, answered = [], select.poll()
    for _ in range(REQUESTS):
        clients.append(closing.enter_context(socket.create_connection(("127.0.0.1", port))))
        clients[-1].sendall(REQUEST)
        answered.register(clients[-1], select.POLLIN)
    until = time.monotonic() + SECONDS
    while connections(picker) + len(answered.poll(0)) < REQUESTS:
        assert time.monotonic() < until, "Envoy has not asked for all picks"
        time.sleep(0.01)
    return clients


async def test_no_request_is_refused_while_the_picker_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine may take so long to send them all that the picker would count as one that hangs.
    monkeypatch.setattr(app, "HangGuard", partial(HangGuard, 10 * SECONDS))
    monkeypatch.setattr(timeouts, "PICKER_CHECKS", 1_000)
    async with running() as fleet, AsyncExitStack() as closing:
        clients = send_all(fleet.gateway.port, fleet.gateway.proxy.paths.picker, closing)
        statuses = await asyncio.to_thread(lambda: Counter(map(status, clients)))
    assert statuses == {"404": REQUESTS}


async def test_a_picker_whose_loop_takes_long_turns_is_not_taken_for_one_that_hangs() -> None:
    """Each turn is longer than Envoy waits for an answer to its health check, and shorter than a hang."""
    turn_seconds = timeouts.PICKER_CHECK_SECONDS + timeouts.PICKER_CHECK_ANSWER_SECONDS
    async with running() as fleet, AsyncExitStack() as closing:
        for _ in range(4):
            time.sleep(turn_seconds)  # the loop works  # noqa: ASYNC251
            for _ in range(3):  # enough for the loop's sign of life, too few to accept a connection and read from it
                await asyncio.sleep(0)
        client = closing.enter_context(socket.create_connection(("127.0.0.1", fleet.gateway.port)))
        client.sendall(REQUEST)
        assert await asyncio.to_thread(status, client) == "404"
