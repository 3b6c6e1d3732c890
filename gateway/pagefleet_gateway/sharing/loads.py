"""Gateways tell each other which requests they have in flight on which pod, and which text they have sent there.

One WebSocket leads from each gateway to each. A gateway connects to every other one and hears, at once, everything that the
other has in flight, and then what changes, at most fifty times a second. So all gateways choose pods by the same loads and the
same prefixes. When the connection ends, the other's requests are forgotten: those of a dead gateway have ended with it, and
after a partition the engines' own metrics show them. A slow listener gets the newest numbers late, never more messages.

A message is a map in MessagePack: `pods` has the rows of in_flight.py by the pods' uids, `whole` states whether they are all,
and `prefixes` has block hashes by the pods' caches.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.prefixes import HASH_BYTES, MAX_NEWS, Prefixes
from pagefleet_gateway.sharing.members import Members

log = logging.getLogger(__name__)

PATH = "/loads"
PERIOD_SECONDS = 0.02  # between two messages
LONELY_SECONDS = 0.25  # between two looks for other gateways while nobody listens
RETRY_SECONDS = 1.0  # between two attempts to connect
HEARTBEAT_SECONDS = 2.0  # a connection that answers no ping for half as long is over
MAX_BYTES = 32 * 1024 * 1024  # of one message: a hundred thousand pods

Rows = Mapping[str, list[int]]
Hashes = Mapping[str, bytes]


class Listener:
    """Another gateway that hears this one: what it has not been told yet."""

    def __init__(self, rows: Rows, prefixes: Hashes) -> None:
        self._rows, self._prefixes, self._whole = dict(rows), dict(prefixes), True
        self.news = asyncio.Event()
        self.news.set()

    def add(self, rows: Rows, prefixes: Hashes) -> None:
        self._rows.update(rows)
        if sum(map(len, self._prefixes.values())) < MAX_NEWS * HASH_BYTES:
            for cache, hashes in prefixes.items():
                self._prefixes[cache] = self._prefixes.get(cache, b"") + hashes
        self.news.set()

    def take(self) -> bytes:
        """Return the next message. The first one has everything that is in flight."""
        message = msgspec.msgpack.encode({"whole": self._whole, "pods": self._rows, "prefixes": self._prefixes})
        self._rows, self._prefixes, self._whole = {}, {}, False
        self.news.clear()
        return message


class Loads:
    """The exchange with the other gateways. `follow` runs until cancelled."""

    def __init__(self, ledger: Ledger, prefixes: Prefixes, members: Members) -> None:
        self._ledger, self._prefixes, self._members = ledger, prefixes, members
        self._listeners: set[Listener] = set()
        self._sockets: set[web.WebSocketResponse] = set()
        self._heard: dict[str, asyncio.Task[None]] = {}  # by the other gateway's name
        self._moved: set[str] = set()  # the names of gateways that have come, moved or gone
        members.listen(self._moved.add)

    @property
    def listeners(self) -> int:
        """Return how many gateways listen to this one."""
        return len(self._listeners)

    def routes(self) -> list[web.RouteDef]:
        return [web.get(PATH, self._serve)]

    async def close(self, _: web.Application) -> None:
        """End the connections of all listeners: the server would wait for them."""
        for socket in tuple(self._sockets):
            await socket.close(code=aiohttp.WSCloseCode.GOING_AWAY)

    async def follow(self) -> None:
        """Tell what changes, and hear the others."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=RETRY_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
            while True:
                self._follow_members(session, group)
                rows, prefixes = self._ledger.take_changed(), self._prefixes.take_news()
                if rows or prefixes:
                    for listener in self._listeners:
                        listener.add(rows, prefixes)
                await asyncio.sleep(PERIOD_SECONDS if self._listeners else LONELY_SECONDS)

    def _follow_members(self, session: aiohttp.ClientSession, group: asyncio.TaskGroup) -> None:
        while self._moved:
            name = self._moved.pop()
            if name in self._heard:
                self._heard.pop(name).cancel()
            if name in self._members.addresses:
                self._heard[name] = group.create_task(self._hear(session, name, self._members.addresses[name]))

    async def _hear(self, session: aiohttp.ClientSession, name: str, address: str) -> None:
        """Hear another gateway until cancelled."""
        url, silent = f"http://{address}{PATH}", False
        while True:
            try:
                async with session.ws_connect(url, heartbeat=HEARTBEAT_SECONDS, max_msg_size=MAX_BYTES) as socket:
                    silent = False
                    async for message in socket:
                        self._take_over(name, message.data)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                if not silent:
                    log.warning("the gateway pod %s does not tell its load at %s: %s", name, url, error)
                silent = True
            finally:
                self._ledger.others.forget(name)
            await asyncio.sleep(RETRY_SECONDS)

    def _take_over(self, name: str, data: Any) -> None:
        try:
            message = msgspec.msgpack.decode(data)
        except (msgspec.DecodeError, TypeError):
            return
        if not isinstance(message, dict):
            return
        if message.get("whole") is True:
            self._ledger.others.replace(name, message.get("pods"))
        else:
            self._ledger.hear(name, message.get("pods"), time.monotonic())
        prefixes = message.get("prefixes")
        for cache, hashes in prefixes.items() if isinstance(prefixes, dict) else ():
            if isinstance(cache, str) and isinstance(hashes, bytes):
                self._prefixes.hear(cache, hashes)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        """Tell another gateway. Everybody else is refused: how busy which pod is, is nobody's business."""
        if not self._members.includes(request.remote):
            return web.json_response({"error": "only gateway pods may hear of loads"}, status=403)
        socket = web.WebSocketResponse(heartbeat=HEARTBEAT_SECONDS)
        await socket.prepare(request)
        listener = Listener(self._ledger.rows(), self._prefixes.latest())
        self._listeners.add(listener)
        self._sockets.add(socket)
        telling = asyncio.create_task(_tell(socket, listener))
        try:
            async for _ in socket:  # it says nothing: this ends with the connection
                pass
        finally:
            self._listeners.discard(listener)
            self._sockets.discard(socket)
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await telling
        return socket


async def _tell(socket: web.WebSocketResponse, listener: Listener) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            await listener.news.wait()
            await socket.send_bytes(listener.take())
