"""The gateway as the lines' client sees it: one POST for each line, as background work, in the name of the batch's client."""

from __future__ import annotations

import asyncio
import email.utils
import math
import ssl
import time
from pathlib import Path
from types import TracebackType

import aiohttp

from pagefleet_batches.sending.answers import Answer
from pagefleet_contract.headers import (
    ACTS_FOR_HEADER,
    BACKGROUND,
    PRIORITY_HEADER,
    REQUEST_ID_HEADER,
)

CONNECT_SECONDS = 5.0
# The longest `spec.traffic.timeout` is a day; a connection whose other end is gone is found by TCP's keep-alive before.
ANSWER_SECONDS = 24 * 3600.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
PROBE_PATH, PROBE_SECONDS = "/v1/completions", 5.0


class GatewayClient:
    """`url`: of the gateway, without a path. `authorities`: a file of certificates, for https. A context manager."""

    def __init__(self, url: str, authorities: Path | None = None) -> None:
        """Raises OSError when the file of authorities cannot be read."""
        self._url = url.rstrip("/")
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)
        trusted = ssl.create_default_context(cafile=authorities) if url.startswith("https://") else True
        connector = aiohttp.TCPConnector(limit=0, ssl=trusted)
        self._http = aiohttp.ClientSession(timeout=timeout, connector=connector, auto_decompress=True)

    async def __aenter__(self) -> GatewayClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def post(self, path: str, body: bytes, key: str, client: str) -> Answer:
        """Send one line. `key`: this server's, "" where the gateway demands none. Never raises for a failed connection."""
        headers = {"content-type": "application/json", PRIORITY_HEADER: BACKGROUND}
        if key:
            headers |= {"authorization": f"Bearer {key}", ACTS_FOR_HEADER: client}
        try:
            # A redirect would take the key elsewhere.
            post = self._http.post(self._url + path, data=body, headers=headers, allow_redirects=False)
            async with post as response:
                parts, size = [], 0
                async for part in response.content.iter_chunked(65536):
                    parts.append(part)
                    size += len(part)
                    if size > MAX_ANSWER_BYTES:
                        return Answer(502, b"the answer is larger than 64 MiB")
                wait = _retry_after(response.headers.get("retry-after"))
                request_id = response.headers.get(REQUEST_ID_HEADER, "")
                return Answer(response.status, b"".join(parts), wait, request_id)
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError):
            return Answer(0)

    async def probe(self, key: str) -> int:
        """Ask for nothing, and return the status of the gateway's refusal: it tells whether a key is demanded and known. 0: no
        answer."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS)
        try:
            post = self._http.post(
                self._url + PROBE_PATH, json={}, headers=headers, timeout=timeout, allow_redirects=False
            )
            async with post as response:
                await response.read()
                return response.status
        except (aiohttp.ClientError, TimeoutError):
            return 0


def _retry_after(text: str | None) -> float | None:
    """Read `Retry-After`: seconds, or a date (RFC 9110, section 10.2.3)."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        pass
    else:
        return seconds if math.isfinite(seconds) else None
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):  # an engine may write anything
        return None
