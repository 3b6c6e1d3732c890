"""The internal HTTP server on port 9002: health, metrics, windows. Read-only, never on the clients' port."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping

import msgspec
from aiohttp import web

from pagefleet_gateway.cluster.service import ServiceKey
from pagefleet_gateway.measuring.metrics import Metrics
from pagefleet_gateway.measuring.windows import Windows


def application(
    not_ready_reason: Callable[[], str],
    metrics: Metrics,
    windows: Windows,
    held: Callable[[ServiceKey], int],
    held_by_service: Callable[[], Mapping[ServiceKey, int]],
) -> web.Application:
    """Build the routes. `not_ready_reason` returns why the gateway is not ready, "" when it is. `held` returns how many
    requests wait for a service, `held_by_service` the same for every service for which any wait."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        reason = not_ready_reason()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    async def show_metrics(request: web.Request) -> web.StreamResponse:
        parts = await metrics.page()
        response = web.StreamResponse(headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})
        response.content_length = sum(map(len, parts))
        await response.prepare(request)
        for part in parts:
            await response.write(part)
            await asyncio.sleep(0)  # picks get their turn between two parts
        await response.write_eof()
        return response

    async def show_windows(request: web.Request) -> web.Response:
        namespace, service = request.query.get("namespace", ""), request.query.get("service", "")
        if not namespace or not service:
            return _bad_request(
                "`namespace` and `service` must both be given: /windows?namespace=<namespace>&service=<name>"
            )
        times = dict[str, float]()
        for given in ("since", "counts"):
            try:
                times[given] = float(request.query.get(given, "0"))
            except ValueError:
                times[given] = math.nan
            if not math.isfinite(times[given]):
                return _bad_request(f"`{given}` must be a Unix time in seconds")
        for _ in windows.steps():
            await asyncio.sleep(0)
        document = windows.document(namespace, service, times["since"], time.monotonic(), times["counts"])
        body = msgspec.json.encode(document | {"held": held((namespace, service))})
        return web.Response(body=body, content_type="application/json")

    async def show_held(_: web.Request) -> web.Response:
        return web.json_response({"held": {f"{key[0]}/{key[1]}": count for key, count in held_by_service().items()}})

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


def _bad_request(message: str) -> web.Response:
    return web.json_response({"error": message}, status=400)
