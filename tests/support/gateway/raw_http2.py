"""Requests over HTTP/2 byte by byte (RFC 9113; headers as literals without indexing, RFC 7541 section 6.2.2), for what no client library sends."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable

DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
Header = tuple[bytes, bytes]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def block(headers: Iterable[Header]) -> bytes:
    """Headers whose names and values are shorter than 127 bytes."""
    return b"".join(b"\0" + b"".join(bytes([len(text)]) + text for text in header) for header in headers)


async def send(port: int, method: bytes, path: bytes, body: bytes, seconds: float = 1.0) -> None:
    """Send a request of JSON, and read for so many seconds or until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    known = [(b":method", method), (b":scheme", b"http"), (b":authority", b"g"), (b":path", path)]
    headers = block([*known, (b"content-type", b"application/json")])
    opened = PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, END_HEADERS, 1, headers)
    writer.write(opened + frame(DATA, END_STREAM, 1, body))
    try:
        async with asyncio.timeout(seconds):
            while await reader.read(65536):
                pass
    except (TimeoutError, ConnectionError):
        pass
    writer.close()
