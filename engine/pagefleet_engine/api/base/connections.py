"""Closes connections of clients that do not finish a request's head (slowloris)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from pagefleet_engine.api.base.errors import ApiError

HEAD_SECONDS = 15.0


class Connections:
    """Makes the protocol of each new connection. Call `head_received` when a whole head has come on one."""

    def __init__(self, server: Callable[[], asyncio.Protocol], seconds: float = HEAD_SECONDS) -> None:
        self._server, self._seconds = server, seconds
        self._silent: set[asyncio.BaseProtocol] = set()  # for `seconds` at most

    def __call__(self) -> asyncio.Protocol:
        protocol = self._server()
        self._silent.add(protocol)
        asyncio.get_running_loop().call_later(self._seconds, self._check, protocol)
        return protocol

    def head_received(self, request: web.BaseRequest) -> None:
        self._silent.discard(request.protocol)

    def _check(self, protocol: asyncio.Protocol) -> None:
        transport = getattr(protocol, "transport", None)
        if protocol not in self._silent:
            return
        self._silent.discard(protocol)
        if transport is None or transport.is_closing():
            return
        error = ApiError(408, f"the request's head did not come within {self._seconds:g} s", code="head_timeout")
        text = error.response().text or ""
        head = f"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n"
        transport.write(f"{head}Connection: close\r\n\r\n{text}".encode())
        transport.close()
