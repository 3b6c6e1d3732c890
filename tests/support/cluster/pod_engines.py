"""Engines for the pods of a StatusNode: one HTTP server at each address of a pod that lives. At the address of a pod that has crashed
or is deleted connections are refused, and those that were open are cut."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web

PORT = 8000
Pages = Callable[[str, str], str]  # the page of /metrics by revision and address


def no_page(revision: str, address: str) -> str:
    return ""


@dataclass
class PodEngines:
    """`answers` counts requests by revision. `seconds` is how long an answer takes."""

    pages: Pages = no_page
    seconds: float = 0.0
    answers: Counter[str] = field(default_factory=Counter)
    _runners: dict[str, web.AppRunner] = field(default_factory=dict)

    async def up(self, address: str, revision: str) -> None:
        """Listen at a pod's address."""
        if address in self._runners:
            return
        app = web.Application(client_max_size=64 << 20)
        for path in ("/v1/chat/completions", "/v1/completions"):
            app.router.add_post(path, partial(self._answer, revision))
        app.router.add_get("/metrics", partial(self._page, revision, address))
        runner = self._runners[address] = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, address, PORT).start()

    async def down(self, address: str) -> None:
        """Refuse connections at the address, and cut the open ones, as a process that is killed does."""
        runner = self._runners.pop(address, None)
        if runner is None or runner.server is None:
            return
        for site in list(runner.sites):
            await site.stop()
        for handler in list(runner.server.connections):
            if handler.transport is not None:
                handler.transport.abort()
        await runner.cleanup()

    async def stop(self) -> None:
        for address in list(self._runners):
            await self.down(address)

    async def _answer(self, revision: str, request: web.Request) -> web.Response:
        self.answers[revision] += 1
        await request.read()
        await asyncio.sleep(self.seconds)
        message = {"role": "assistant", "content": "yes"}
        choice = {"index": 0, "message": message, "text": "yes", "finish_reason": "stop"}
        return web.json_response({"object": "chat.completion", "choices": [choice]})

    async def _page(self, revision: str, address: str, _: web.Request) -> web.Response:
        page = self.pages(revision, address)
        return web.Response(text=page) if page else web.Response(status=404)
