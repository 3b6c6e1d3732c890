"""Reads an HTTP answer's body up to a limit: a peer that sends without end must not fill the operator's memory."""

from __future__ import annotations

import aiohttp


class TooLongError(ValueError):
    """The body is longer than allowed."""


async def body(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The whole body. Raises TooLongError beyond `most` bytes."""
    content = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        content += chunk
        if len(content) > most:
            raise TooLongError(f"more than {most} bytes")
    return bytes(content)
