"""A client's own sockets, so that it can see the last of them closed. aiohttp forgets a TLS connection whose request was
given up at once, and closes it in the background; an event loop that ends meanwhile leaves it open."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from weakref import WeakSet

from aiohttp import AddrInfoType

LOOKS, PAUSE_SECONDS = 500, 0.002


class Sockets:
    """Makes a connector's sockets: `aiohttp.TCPConnector(socket_factory=Sockets())`."""

    def __init__(self) -> None:
        self._made: WeakSet[socket.socket] = WeakSet()

    def __call__(self, info: AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = info
        made = socket.socket(family, kind, protocol)
        self._made.add(made)
        return made

    async def closed(self) -> None:
        """After the session is closed: nothing is sent or heard on them any more, and their transports are gone (or a
        second or so has passed)."""
        for one in self._open():
            with contextlib.suppress(OSError):  # not connected yet, or no longer
                one.shutdown(socket.SHUT_RDWR)
        for _ in range(LOOKS):
            if not self._open():
                return
            await asyncio.sleep(PAUSE_SECONDS)

    def _open(self) -> list[socket.socket]:
        return [one for one in self._made if one.fileno() >= 0]
