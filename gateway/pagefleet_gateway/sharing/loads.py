"""Gateways tell each other which requests they have in flight on which pod and hold, which text they have sent there, and which
pods have failed.

One HTTP answer that does not end leads from each gateway to each. A gateway asks every other one and hears, at once, everything
that the other has in flight, and then what changes, at most a hundred times a second. So all gateways choose pods by the same loads
and the same prefixes. When the answer ends or falls silent, the other's requests are forgotten: those of a dead gateway have
ended with it, and after a partition the engines' own metrics show them. A slow listener gets the newest numbers late, never more
messages.

A message is its length (four bytes, the highest first) and a map in MessagePack, whose keys news.py explains. One of length 0 is a
sign of life.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

import aiohttp
import msgspec
from aiohttp import web

from pagefleet_gateway.sharing.members import Members
from pagefleet_gateway.sharing.news import News, Newsroom

log = logging.getLogger(__name__)

PATH = "/loads"
PERIOD_SECONDS = (
    0.01  # between two messages: with twice as long a crowd through eight gateways waits a tenth longer at p95
)
LONELY_SECONDS = 0.25  # between two looks for other gateways while nobody listens
RETRY_SECONDS = 1.0  # between two attempts to connect
ALIVE_SECONDS = 1.0  # without news there is a sign of life so often
SILENT_SECONDS = 3.0  # a gateway that sends or takes nothing for so long is gone
MAX_BYTES = 32 * 1024 * 1024  # of one message: a hundred thousand pods


class Listener:
    """Another gateway that hears this one, with the news that it has not got yet."""

    def __init__(self) -> None:
        self._news = News()
        self.waits = asyncio.Event()  # set while there are news for it

    def begin(self, first: News) -> None:
        """Tell these first. What was added before has changed while they were put together; `served` of both is the same."""
        self._news.served = {}
        first.add(self._news)
        self._news = first
        self.waits.set()

    def add(self, news: News) -> None:
        self._news.add(news)
        self.waits.set()

    def take(self) -> bytes:
        """Return the next message."""
        message = msgspec.msgpack.encode(self._news.message())
        self._news = News()
        self.waits.clear()
        return message


class Loads:
    """The exchange with the other gateways. `follow` runs until cancelled. `on_news` is called when another's loads have changed."""

    def __init__(self, newsroom: Newsroom, members: Members, on_news: Callable[[], None]) -> None:
        self._newsroom, self._members, self._on_news = newsroom, members, on_news
        self._listeners: set[Listener] = set()
        self._telling: set[asyncio.Task[None]] = set()
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
        """End the answers of all listeners: the server would wait for them."""
        for telling in self._telling:
            telling.cancel()

    async def follow(self) -> None:
        """Tell what changes, and hear the others."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=RETRY_SECONDS, sock_read=SILENT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
            while True:
                self._follow_members(session, group)
                if news := self._newsroom.changes(time.monotonic()):
                    for listener in self._listeners:
                        listener.add(news)
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
                async with session.get(url, allow_redirects=False) as response:
                    response.raise_for_status()
                    silent = False
                    while True:
                        await self._take_over(name, await _message(response.content))
            except (aiohttp.ClientError, OSError, EOFError, ValueError, msgspec.MsgspecError) as error:
                if not silent:
                    log.warning("the gateway pod %s does not tell its load at %s: %r", name, url, error)
                silent = True
            finally:
                self._newsroom.forget(name)
                self._on_news()
            await asyncio.sleep(RETRY_SECONDS)

    async def _take_over(self, name: str, data: bytes) -> None:
        message = msgspec.msgpack.decode(data) if data else None
        if isinstance(message, dict):
            for _ in self._newsroom.take_over(name, message, time.monotonic()):
                await asyncio.sleep(0)
            self._on_news()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        """Tell another gateway. Everybody else is refused: how busy which pod is, is nobody's business."""
        if not self._members.includes(request.remote):
            return web.json_response({"error": "only gateway pods may hear of loads"}, status=403)
        response = web.StreamResponse(headers={"content-type": "application/octet-stream"})
        await response.prepare(request)
        listener = Listener()
        self._listeners.add(listener)
        telling = asyncio.create_task(self._tell_all(response, listener))
        self._telling.add(telling)
        try:
            await asyncio.wait([telling])
        finally:
            telling.cancel()
            self._listeners.discard(listener)
            self._telling.discard(telling)
        return response

    async def _tell_all(self, response: web.StreamResponse, listener: Listener) -> None:
        first = News(whole=True)
        for _ in self._newsroom.gather(first, time.monotonic()):
            await asyncio.sleep(0)
        listener.begin(first)
        await _tell(response, listener)


async def _tell(response: web.StreamResponse, listener: Listener) -> None:
    """Send messages until the listener is gone."""
    with contextlib.suppress(ConnectionError, TimeoutError):
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ALIVE_SECONDS):
                    await listener.waits.wait()
            message = listener.take() if listener.waits.is_set() else b""
            async with asyncio.timeout(SILENT_SECONDS):
                await response.write(len(message).to_bytes(4) + message)


async def _message(content: aiohttp.StreamReader) -> bytes:
    """Read a message. Raises ValueError for one that is too long."""
    size = int.from_bytes(await content.readexactly(4))
    if size > MAX_BYTES:
        raise ValueError(f"a message of {size} bytes")
    return await content.readexactly(size)
