"""The internal HTTP on port 9002: health, metrics, windows. Read-only, never on the clients' port."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import msgspec
from aiohttp import web

from pagefleet_gateway.cluster.state import ServiceKey
from pagefleet_gateway.measuring.metrics import Metrics
from pagefleet_gateway.measuring.windows import Windows


def application(
    ready: Callable[[], str],
    metrics: Metrics,
    windows: Windows,
    held: Callable[[ServiceKey], int],
    waited_for: Callable[[], Mapping[ServiceKey, int]],
) -> web.Application:
    """The routes. `ready` says why the gateway is not ready, "" when it is; `held` how many requests wait for a service,
    `waited_for` the same of every service that some wait for."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        reason = ready()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    async def show_windows(request: web.Request) -> web.Response:
        namespace, service = request.query.get("namespace", ""), request.query.get("service", "")
        if not namespace or not service:
            return _wrong("`namespace` and `service` must both be given")
        try:
            since = float(request.query.get("since", "0"))
        except ValueError:
            since = math.nan
        if not math.isfinite(since):
            return _wrong("`since` must be a Unix time in seconds")
        answer = windows.answer(namespace, service, since, time.time())
        document = msgspec.json.encode(answer | {"held": held((namespace, service))})
        return web.Response(body=document, content_type="application/json")

    async def show_held(_: web.Request) -> web.Response:
        return web.json_response({"held": {f"{key[0]}/{key[1]}": count for key, count in waited_for().items()}})

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", show_metrics),
            web.get("/windows", show_windows),
            web.get("/held", show_held),
        ]
    )
    return app


def _wrong(message: str) -> web.Response:
    return web.json_response({"error": message}, status=400)
