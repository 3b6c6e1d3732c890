"""Engines without a model, one for each pod's address: they answer, stream, and end as a pagefleet-engine does.

All of 127.0.0.0/8 is this machine, so one listening socket serves every pod; which pod is meant is the address that was
called. No engine answers at an address that is not up. An engine that gets the order to stop continues until its streams have ended,
takes new requests for as long as gateways may not have heard of it, and is then gone.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import cast

from bench.gatewaybench.stub import CHUNK, Connection, Engine

PORT = 8000
INTERVAL = 0.1  # seconds between two tokens of a stream
LINGER = 3.0  # seconds after the order to stop in which new requests are still taken
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    b"x-arrived: %.6f\r\ntrailer: x-pagefleet-output-tokens\r\n\r\n"
)
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\nx-pagefleet-output-tokens: %d\r\n\r\n"


class Engines:
    """Engines by address. `x-arrived` in an answer is the machine's monotonic clock when the request had come."""

    def __init__(self) -> None:
        self.up: dict[str, Engine] = {}
        self._stopping: dict[str, float] = {}

    async def serve(self) -> None:
        """Listen, and step all streams, until cancelled."""
        loop = asyncio.get_running_loop()
        await loop.create_server(partial(Door, self), "0.0.0.0", PORT, backlog=1024)
        due = loop.time()
        while True:
            due = max(due + INTERVAL, loop.time())
            await asyncio.sleep(due - loop.time())
            for engine in list(self.up.values()):
                engine.step()

    def start(self, address: str) -> None:
        self.up.setdefault(address, Engine(0.0, INTERVAL))

    async def stop(self, address: str, grace: float) -> None:
        """Returns when the process would have ended. After `grace` seconds open streams are cut, as by a SIGKILL."""
        engine = self.up.get(address)
        if engine is None:
            return
        began = time.monotonic()
        self._stopping[address] = began
        while time.monotonic() - began < LINGER or (engine.streams and time.monotonic() - began < grace):
            await asyncio.sleep(0.05)
        del self.up[address], self._stopping[address]
        for connection in list(engine.streams):
            cast(Door, connection).cut()

    def takes(self, address: str) -> bool:
        """Whether an engine listens at the address."""
        since = self._stopping.get(address)
        return address in self.up and (since is None or time.monotonic() - since < LINGER)


class Door(Connection):
    """One connection, to whichever engine was called."""

    def __init__(self, engines: Engines) -> None:
        super().__init__(Engine(0.0, INTERVAL))
        self._engines = engines

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        address = transport.get_extra_info("sockname")[0]
        if self._engines.takes(address):
            self._engine = self._engines.up[address]
        else:
            self.cut()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _begin(self, tokens: int) -> None:
        head = HEAD % time.monotonic()
        if tokens > 1:
            self.send(head + CHUNK)
            self._engine.streams[self] = [1, tokens]
        else:
            self.send(head + CHUNK + DONE % tokens)
