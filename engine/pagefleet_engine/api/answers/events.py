"""Server-sent events: the response's headers are sent with the first event, and a client that does not read is cut off.

To a client that takes trailers (`TE: trailers`; the gateway does) the last chunk states how many tokens the answer had.
Events are written by hand: aiohttp-sse sends the headers before the first event, when an error status is still
possible here, and it has neither a time limit for a client that does not read nor trailers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11, StreamWriter

from pagefleet_contract.headers import ERROR_HEADER, OUTPUT_TOKENS_HEADER, PROMPT_TOKENS_HEADER
from pagefleet_engine.api.answers.shapes import event

DONE = b"data: [DONE]\n\n"


class SlowReader(ConnectionResetError):
    """The client has read nothing for so long that its connection was closed."""


class Events:
    """One stream. Events that the client does not read wait in bounded buffers; after `write_timeout` s it is cut off."""

    def __init__(self, request: web.Request, write_timeout: float, prompt_tokens: int, *, named: bool = False) -> None:
        """`named`: each event has the name that its document has as `type`."""
        self._request, self._timeout, self._named = request, write_timeout, named
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        headers[PROMPT_TOKENS_HEADER] = str(prompt_tokens)
        self._trailers = request.version >= HttpVersion11 and "trailers" in request.headers.get("TE", "").lower()
        if self._trailers:
            headers["Trailer"] = OUTPUT_TOKENS_HEADER
        self._response = web.StreamResponse(headers=headers)
        self._writer: AbstractStreamWriter | None = None

    @property
    def response(self) -> web.StreamResponse:
        return self._response

    @property
    def begun(self) -> bool:
        return self._response.prepared

    async def send(self, *documents: Mapping[str, Any]) -> None:
        """Raises ConnectionResetError when the client has gone, SlowReader when it does not read."""
        await self._write(b"".join(event(document, self._named) for document in documents))

    async def end(self, *, done: bool, tokens: int | None = None, error: str | None = None) -> None:
        """End the stream. `tokens`: output tokens of all answers. `error`: the code of the error that ended them."""
        if done:
            await self._write(DONE)
        if tokens is not None:
            self._send_trailer(OUTPUT_TOKENS_HEADER, str(tokens))
        elif error is not None:
            self._send_trailer(ERROR_HEADER, error)
        await self._response.write_eof()

    def _send_trailer(self, name: str, value: str) -> None:
        """Write the last chunk with trailers, in place of aiohttp's own: aiohttp has no trailers."""
        writer = self._writer
        if self._trailers and isinstance(writer, StreamWriter) and writer.chunked and writer.transport is not None:
            writer.transport.write(f"0\r\n{name}: {value}\r\n\r\n".encode())
            writer.chunked = False

    async def _write(self, data: bytes) -> None:
        writer = self._writer
        if isinstance(writer, StreamWriter) and not self._request.protocol.writing_paused:
            # The client reads: this waits for nothing, so it needs no timer, which would cost as much as the write.
            await writer.write(data, drain=False)
            return
        try:
            async with asyncio.timeout(self._timeout):
                if not self._response.prepared:
                    self._writer = await self._response.prepare(self._request)
                await self._response.write(data)
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise SlowReader(f"the client has read nothing for {self._timeout:g} s") from None
