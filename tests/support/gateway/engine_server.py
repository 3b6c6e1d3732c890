"""The HTTP server of a stand-in engine whose prompts another pod may compute. How its two legs meet is the stand-in's own."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class EngineServer:
    """`bodies` are the requests that it got, `left` counts those whose client went away before they ended."""

    host: str
    revision: str
    port: int = 0
    status: int = 200
    gate: asyncio.Event | None = None  # every prompt waits for it
    bodies: list[dict[str, Any]] = field(default_factory=list)
    left: int = 0

    @property
    def id(self) -> str:
        return f"{self.revision}/{self.host}:{self.port}"

    async def start(self, stack: AsyncExitStack) -> None:
        app = web.Application(client_max_size=16 * 1024 * 1024)
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
            app.router.add_post(path, self.serve)
        app.router.add_get("/metrics", self.metrics)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
        await self.runner.setup()
        stack.push_async_callback(self.runner.cleanup)
        await web.TCPSite(self.runner, self.host, self.port).start()
        self.port = self.runner.addresses[0][1]

    async def die(self) -> None:
        await self.runner.cleanup()

    async def metrics(self, _: web.Request) -> web.Response:
        raise web.HTTPNotFound

    async def serve(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self.answer(request, await request.json())
        except (asyncio.CancelledError, ConnectionError):
            self.left += 1
            raise

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        raise web.HTTPNotImplemented


def refused(message: str, status: int = 400) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)
