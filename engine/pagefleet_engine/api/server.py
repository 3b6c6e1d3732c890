"""The HTTP server: routes, health and readiness, metrics, JSON logs, drain on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from pagefleet_engine.api.completions import Completions, Limits
from pagefleet_engine.api.engine import EngineClient
from pagefleet_engine.api.errors import ApiError
from pagefleet_engine.api.metrics import Metrics
from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.model import source, tokenizer
from pagefleet_engine.model.errors import ModelError

BODY_BYTES = 2 << 20
# A pod stays in endpoints and gateways' lists for a moment after it was asked to end.
STILL_ACCEPTING_SECONDS = 2.0
EXIT_CONFIGURATION = 78
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class ServeConfig:
    engine: EngineConfig
    served_model_name: str
    host: str
    port: int
    limits: Limits
    drain_timeout: float


class Server:
    """One API process. `run` returns its exit status."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._metrics = Metrics(config.served_model_name, config.engine)
        self._client = EngineClient(config.engine, self._metrics)
        self._draining_since: float | None = None
        self._stop = asyncio.Event()
        self._created = int(time.time())
        self._active = 0

    async def run(self) -> int:
        try:
            await self._client.start()
            # Loads beside the engine process, which takes longer.
            loaded = await asyncio.to_thread(lambda: tokenizer.load(source.resolve(self._config.engine.model)))
        except ModelError as error:
            return explain(error.field, error.message)
        runner = await self._serve(loaded)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain)
        ended = asyncio.create_task(self._client.ended.wait())
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
        status = 0
        if not stopped.done():
            status = 1
            log("error", "the engine process ended")
        ended.cancel()
        stopped.cancel()
        await self._client.stop()
        await runner.cleanup()
        failed = self._client.failed
        return explain(failed.field, failed.message) if failed else status

    async def _serve(self, loaded: tokenizer.Tokenizer) -> web.AppRunner:
        config = self._config
        completions = Completions(config.served_model_name, self._client, loaded, self._metrics, config.limits)
        app = web.Application(client_max_size=BODY_BYTES, middlewares=[self._outermost])
        app.router.add_post("/v1/completions", completions.completion)
        app.router.add_post("/v1/chat/completions", completions.chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/metrics", self._metrics_text)
        # A client that goes away cancels its handler, and with it the request in the engine.
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=5)
        await runner.setup()
        await web.TCPSite(runner, config.host, config.port, backlog=1024).start()
        log("info", f"serving {config.served_model_name} on {config.host}:{config.port}")
        return runner

    @web.middleware
    async def _outermost(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Errors in OpenAI's shape, whatever raised them; refusal when draining; a log line per request."""
        inference = request.path.startswith("/v1/") and request.method == "POST"
        began = time.monotonic()
        status: int | str = "cancelled"
        self._active += inference
        try:
            if inference:
                self._admit()
            response = await handler(request)
            status = response.status
        except ApiError as error:
            response, status = error.response(), error.status
        except web.HTTPException as error:
            shaped = ApiError(error.status, f"{error.reason}: {request.method} {request.path}", code="http_error")
            response, status = shaped.response(), error.status
        except ConnectionResetError:
            raise
        except Exception as error:
            log("error", f"{type(error).__name__}: {error}", request_id=request.headers.get("x-request-id"))
            response, status = ApiError(500, "internal error", code="internal_error").response(), 500
        finally:
            self._active -= inference
            if inference:
                log("info", f"{request.method} {request.path}", request_id=request.headers.get("x-request-id"),
                    status=status, seconds=round(time.monotonic() - began, 4))  # fmt: skip
        return response

    def _admit(self) -> None:
        if not self._client.healthy:
            raise ApiError(503, "the model is not ready", code="not_ready", retry_after=5)
        since = self._draining_since
        if since is not None and time.monotonic() - since > STILL_ACCEPTING_SECONDS:
            raise ApiError(503, "this server is shutting down", code="draining", retry_after=1)

    def _drain(self) -> None:
        if self._draining_since is None:
            self._draining_since = time.monotonic()
            log("info", f"draining: {self._client.open} requests are open")
            self._drainer = asyncio.create_task(self._drained())

    async def _drained(self) -> None:
        """Set `stop` when the last request has ended, at the latest after the drain timeout."""
        end = time.monotonic() + self._config.drain_timeout
        await asyncio.sleep(STILL_ACCEPTING_SECONDS)
        while self._active and time.monotonic() < end:
            await asyncio.sleep(0.1)
        log("info" if not self._active else "warning", f"drained: {self._active} requests left")
        self._stop.set()

    async def _models(self, _: web.Request) -> web.Response:
        ready = self._client.ready
        model = {"id": self._config.served_model_name, "object": "model", "created": self._created,
                 "owned_by": "pagefleet", "max_model_len": ready.max_model_len if ready else None}  # fmt: skip
        return web.json_response({"object": "list", "data": [model]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _ready(self, _: web.Request) -> web.Response:
        if self._draining_since is not None:
            raise ApiError(503, "draining", code="draining")
        if not self._client.healthy:
            raise ApiError(503, "the model is not ready", code="not_ready")
        return web.json_response({"status": "ready"})

    async def _metrics_text(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})


def log(level: str, message: str, **fields: object) -> None:
    line = {"time": round(time.time(), 3), "level": level, "message": message, **fields}
    print(json.dumps({name: value for name, value in line.items() if value is not None}), flush=True)  # noqa: T201


def explain(field: str, message: str) -> int:
    """Tell the user what to mend, on stderr and in the pod's termination message. Returns the exit status."""
    print(f"pagefleet-engine: {field}: {message}", file=sys.stderr)  # noqa: T201
    path = Path(os.environ.get("PAGEFLEET_TERMINATION_LOG", "/dev/termination-log"))
    with contextlib.suppress(OSError):
        path.write_text(json.dumps({"field": field, "message": message}))
    return EXIT_CONFIGURATION
