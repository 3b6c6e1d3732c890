"""Reads the body of an HTTP answer up to a limit, so that an endless answer does not fill the operator's memory."""

from __future__ import annotations

import aiohttp


class TooLongError(ValueError):
    """The body is longer than allowed."""


async def body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The whole body. Raises TooLongError beyond `limit` bytes."""
    content = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        content += chunk
        if len(content) > limit:
            raise TooLongError(f"more than {limit} bytes")
    return bytes(content)
