"""A cable between two gateways that a test can cut. A cut cable keeps what is sent into it until it is mended. No connection ends, so
neither gateway learns of the cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Cable:
    """Forwards connections to a port of this host, while it is not cut."""

    def __init__(self, port: int) -> None:
        self._far = port
        self._whole = asyncio.Event()
        self._whole.set()
        self._carrying: set[asyncio.Task[None]] = set()
        self.port = 0

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until one end closes it."""
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        writers = [writer]
        try:
            await self._whole.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._far)
            writers.append(far_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(reader, far_writer))
                group.create_task(self._carry(far_reader, writer))
        except* (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            for one in writers:
                one.close()
            self._carrying.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._whole.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError  # ends the other way, too

    async def close(self) -> None:
        carrying = tuple(self._carrying)
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)


@asynccontextmanager
async def cable(port: int) -> AsyncIterator[Cable]:
    """Lay a cable to `port`."""
    laid = Cable(port)
    server = await asyncio.start_server(laid.join, "127.0.0.1", 0)
    laid.port = server.sockets[0].getsockname()[1]
    try:
        yield laid
    finally:
        server.close()
        await laid.close()
