"""Engines for the pods of a StatusNode: one HTTP server at each address of a pod that lives. At the address of a pod that has crashed
or is deleted connections are refused, and those that were open are cut."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web

from pagefleet_engine.api.observability.metrics import Metrics
from pagefleet_engine.core.requests import EngineConfig, EngineStats

PORT, PAGES, SLOTS, TOKENS_PER_SECOND = 8000, 112, 8, 30.0
# A page of metrics is this old at most. The test's own requests are in it at once. Without that a thousand engines take a whole core.
PAGE_SECONDS = 2.0


@dataclass
class _Measured:
    """One engine's metrics, by our engine's own code. While it is `busy` its load is another every PAGE_SECONDS. A request waits only
    while SLOTS others run, and what runs generates tokens, as in an engine."""

    busy: bool
    running: int = 0
    _of: int = 0  # how many ran when the page was made
    _page: bytes = b""
    metrics: Metrics = field(default_factory=lambda: Metrics("smollm2", EngineConfig("file:///model")))
    _read: float = field(default_factory=time.monotonic)
    _chance: random.Random = field(default_factory=lambda: random.Random(0))

    def answered(self, seconds: float) -> None:
        self._page = b""
        self.metrics.ttft.observe(seconds)
        self.metrics.finished("stop", seconds, 1)

    def page(self) -> bytes:
        now = time.monotonic()
        if not self._page or now - self._read > PAGE_SECONDS or self.running != self._of:
            self._page, self._of = self._made(now), self.running
        return self._page

    def _made(self, now: float) -> bytes:
        others = self._chance.randint(1, 3) if self.busy else 0
        used = 8 * others
        running = min(SLOTS, self.running + others)
        self.metrics.generation_tokens.inc(running * TOKENS_PER_SECOND * (now - self._read))
        self._read = now
        self.metrics.load(EngineStats(running, self.running + others - running, PAGES, PAGES - used, 0, 0, 0, 0, 9))
        return self.metrics.text()


@dataclass
class PodEngines:
    """`answers` counts requests by revision. `seconds` is how long an answer takes; those of the `broken` revisions are 500.
    `measured`: the engines have a page of metrics. `busy`: it shows a load that moves every PAGE_SECONDS, beside the test's own requests."""

    seconds: float = 0.0
    measured: bool = False
    busy: bool = False
    broken: set[tuple[str, str]] = field(default_factory=set)  # namespace and revision
    answers: Counter[str] = field(default_factory=Counter)
    _runners: dict[str, web.AppRunner] = field(default_factory=dict)

    async def up(self, address: str, namespace: str, revision: str) -> None:
        """Listen at a pod's address."""
        if address in self._runners:
            return
        app = web.Application(client_max_size=64 << 20)
        measured = _Measured(self.busy)
        for path in ("/v1/chat/completions", "/v1/completions"):
            app.router.add_post(path, partial(self._answer, (namespace, revision), measured))
        if self.measured:
            app.router.add_get("/metrics", partial(_page, measured))
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

    async def _answer(self, of: tuple[str, str], measured: _Measured, request: web.Request) -> web.Response:
        began = time.monotonic()
        self.answers[of[1]] += 1
        measured.running += 1
        try:
            await request.read()
            await asyncio.sleep(self.seconds)
        finally:
            measured.running -= 1
        if of in self.broken:
            return web.json_response({"error": {"message": "broken", "type": "server_error"}}, status=500)
        measured.answered(time.monotonic() - began)
        message = {"role": "assistant", "content": "yes"}
        choice = {"index": 0, "message": message, "text": "yes", "finish_reason": "stop"}
        return web.json_response({"object": "chat.completion", "choices": [choice]})


async def _page(measured: _Measured, _: web.Request) -> web.Response:
    return web.Response(body=measured.page(), headers={"Content-Type": "text/plain; version=0.0.4"})
