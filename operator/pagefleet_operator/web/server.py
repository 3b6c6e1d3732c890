"""The operator's HTTP port: health, metrics, the alert webhook and the status page."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from pagefleet_contract.addresses import every_address, listening_socket
from pagefleet_operator.web.own_metrics import Metrics
from pagefleet_operator.web.secure import Secure
from pagefleet_operator.web.status_page import StatusPage

BODY_BYTES = 1 << 20
LAG_EVERY, MAX_LAG = 1.0, 10.0
Handler = Callable[[web.Request], Awaitable[web.Response]]
log = logging.getLogger(__name__)


class Server:
    """Serves the operator's port. `ready` returns whether the operator has begun to watch."""

    def __init__(
        self, metrics: Metrics, alerts: Handler, ready: Callable[[], bool], page: StatusPage | None = None
    ) -> None:
        self._metrics, self._alerts, self._ready, self._page = metrics, alerts, ready, page
        self._beat = time.monotonic()

    async def start(self, port: int) -> web.AppRunner:
        """Serve plain HTTP. `listen` on the runner adds HTTPS."""
        app = web.Application(client_max_size=BODY_BYTES, middlewares=[_told])
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._text)
        app.router.add_post("/alerts", self._alerts)
        if self._page is not None:
            self._page.routes(app)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.SockSite(runner, listening_socket(every_address(), port)).start()
        return runner

    async def listen(self, runner: web.AppRunner, secure: Secure) -> None:
        """Serve HTTPS beside HTTP."""
        site = web.SockSite(runner, listening_socket(every_address(), secure.port), ssl_context=secure.context)
        await site.start()
        log.info("serving HTTPS on port %d", secure.port)

    async def measure_lag(self) -> None:
        """Measure how late the event loop is, for ever."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(LAG_EVERY)
            self._beat = time.monotonic()
            self._metrics.lag.set(max(0.0, self._beat - began - LAG_EVERY))

    async def _healthz(self, _: web.Request) -> web.Response:
        late = time.monotonic() - self._beat
        return web.json_response({"lastBeatSecondsAgo": round(late, 3)}, status=200 if late < MAX_LAG else 503)

    async def _readyz(self, _: web.Request) -> web.Response:
        return web.json_response({"ready": self._ready()}, status=200 if self._ready() else 503)

    async def _text(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})


@web.middleware
async def _told(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer a failure with 500 and a log line, never with a traceback. Alertmanager tries again."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return web.json_response({"error": error.reason}, status=error.status)
    except Exception as error:
        log.exception("%s %s failed", request.method, request.path)
        return web.json_response({"error": type(error).__name__}, status=500)
