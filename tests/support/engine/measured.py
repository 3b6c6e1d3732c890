"""An engine pod's metrics of its requests, made by our engine's own code: it serves so many a second, whoever scrapes it."""

from __future__ import annotations

import random
import time

from aiohttp import web

from pagefleet_engine.api.observability.metrics import Metrics
from pagefleet_engine.core.requests import EngineConfig, EngineStats

REQUESTS = 40  # a second


class MeasuredEngine:
    """A pod whose times to the first token are lognormal around a tenth of a second, `factor` times slower. `pages` has for each
    scrape the number of requests on the page."""

    def __init__(self, seed: int, factor: float = 1.0) -> None:
        self.factor, self.pages = factor, list[int]()
        self._source = random.Random(seed)
        self._runner: web.AppRunner | None = None
        self.restart()

    def restart(self) -> None:
        self.metrics = Metrics("m", EngineConfig("file:///m"))
        self.metrics.load(EngineStats(1, 0, 100, 4, 5, 0, 0, 0, 9))
        self._begun, self._served = time.monotonic(), 0

    async def serve(self, host: str, port: int = 0) -> int:
        """Serve until `close`, and return the port."""
        app = web.Application()
        app.router.add_get("/metrics", self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        bound_port: int = self._runner.addresses[0][1]
        return bound_port

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        due = int((time.monotonic() - self._begun) * REQUESTS)
        for _ in range(due - self._served):
            seconds = 0.1 * self.factor * self._source.lognormvariate(0, 0.5)
            self.metrics.ttft.observe(seconds)
            self.metrics.finished("stop", seconds, 5)
        self._served = due
        self.pages.append(due)
        return web.Response(body=self.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})
