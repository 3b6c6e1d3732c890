"""An engine pod's metrics of its requests, made by our engine's own code: at each scrape it has served 40 more."""

from __future__ import annotations

import random

from aiohttp import web

from pagefleet_engine.api.observability.metrics import Metrics
from pagefleet_engine.core.requests import EngineConfig, EngineStats

REQUESTS = 40


class MeasuredEngine:
    """A pod whose times to the first token are lognormal around a tenth of a second, `factor` times slower."""

    def __init__(self, seed: int, factor: float = 1.0) -> None:
        self.factor, self.scrapes = factor, 0
        self._source = random.Random(seed)
        self._runner: web.AppRunner | None = None
        self.restart()

    def restart(self) -> None:
        self.metrics = Metrics("m", EngineConfig("file:///m"))
        self.metrics.load(EngineStats(1, 0, 100, 4, 5, 0, 0, 0, 9))

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
        self.scrapes += 1
        for _ in range(REQUESTS):
            seconds = 0.1 * self.factor * self._source.lognormvariate(0, 0.5)
            self.metrics.ttft.observe(seconds)
            self.metrics.finished("stop", seconds, 5)
        return web.Response(body=self.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})
