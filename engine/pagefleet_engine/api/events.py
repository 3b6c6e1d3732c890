"""Server-sent events whose headers leave with the first one, to clients that read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from pagefleet_engine.api.shapes import event

DONE = b"data: [DONE]\n\n"


class SlowReader(ConnectionResetError):
    """The client has read nothing for so long that its connection was closed."""


class Events:
    """One stream. What the client does not read stays in bounded buffers; after `write_timeout` seconds it is cut."""

    def __init__(self, request: web.Request, write_timeout: float) -> None:
        self._request, self._timeout = request, write_timeout
        self._response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )

    @property
    def response(self) -> web.StreamResponse:
        return self._response

    @property
    def begun(self) -> bool:
        return self._response.prepared

    async def send(self, *documents: Mapping[str, Any]) -> None:
        """Raises ConnectionResetError when the client has gone, SlowReader when it does not read."""
        await self._write(b"".join(map(event, documents)))

    async def end(self, *, done: bool) -> None:
        if done:
            await self._write(DONE)
        await self._response.write_eof()

    async def _write(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                if not self._response.prepared:
                    await self._response.prepare(self._request)
                await self._response.write(data)
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise SlowReader(f"the client has read nothing for {self._timeout:g} s") from None
