"""The HTTP server: routes, health and readiness, metrics, JSON logs, drain on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from pagefleet_engine.api.completions import Completions, Limits
from pagefleet_engine.api.engine import EngineClient
from pagefleet_engine.api.errors import ApiError
from pagefleet_engine.api.logs import explain, log
from pagefleet_engine.api.metrics import Metrics
from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.model import source, tokenizer
from pagefleet_engine.model.errors import SOURCE, ModelError

BODY_BYTES = 2 << 20
# A pod stays in endpoints and gateways' lists for a moment after it was asked to end.
STILL_ACCEPTING_SECONDS = 2.0
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
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self) -> int:
        config = self._config
        await self._client.start()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain)
        try:
            # Loads beside the engine process, which takes longer.
            loaded = await asyncio.to_thread(_tokenizer, config.engine.model)
            runner = await self._serve(loaded)
        except ModelError as error:
            await self._client.stop()
            return explain(error.field, error.message)
        except OSError as error:
            await self._client.stop()
            log("error", f"cannot listen on {config.host}:{config.port}: {error.strerror or error}")
            return 1
        await self._until_end()
        died = not self._stop.is_set()
        if died and self._client.failed is None:
            log("error", "the engine process ended")
        # First the engine, so that what is still open ends with an error event while the connections are there.
        await self._client.stop()
        await runner.cleanup()
        failed = self._client.failed
        return explain(failed.field, failed.message) if failed else int(died)

    async def _until_end(self) -> None:
        """Until the drain is over, or the engine process has ended."""
        waits = [asyncio.create_task(event.wait()) for event in (self._client.ended, self._stop)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

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
        self._count(int(inference))
        try:
            if inference:
                self._admit()
            response = await handler(request)
            status = response.status
        except ApiError as error:
            response, status = error.response(), error.status
        except web.HTTPException as error:
            response, status = _shaped(error, request), error.status
        except ConnectionResetError:
            raise
        except Exception as error:
            log("error", f"{type(error).__name__}: {error}", request_id=request.headers.get("x-request-id"))
            response, status = ApiError(500, "internal error", code="internal_error").response(), 500
        finally:
            self._count(-int(inference))
            if inference:
                log(
                    "info",
                    f"{request.method} {request.path}",
                    request_id=request.headers.get("x-request-id"),
                    status=status,
                    seconds=round(time.monotonic() - began, 4),
                )
        if self._draining_since is not None:
            response.force_close()
        return response

    def _count(self, change: int) -> None:
        self._active += change
        if self._active:
            self._idle.clear()
        else:
            self._idle.set()

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
        timeout = self._config.drain_timeout
        await asyncio.sleep(min(STILL_ACCEPTING_SECONDS, timeout))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), max(0.0, timeout - STILL_ACCEPTING_SECONDS))
        log("warning" if self._active else "info", f"drained: {self._active} requests are left")
        self._stop.set()

    async def _models(self, _: web.Request) -> web.Response:
        ready = self._client.ready
        model = {
            "id": self._config.served_model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "pagefleet",
            "max_model_len": ready.max_model_len if ready else None,
        }
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


def _tokenizer(uri: str) -> tokenizer.Tokenizer:
    """Raises ModelError, also for what the libraries raise on files that are damaged."""
    try:
        return tokenizer.load(source.resolve(uri))
    except ModelError:
        raise
    except Exception as error:  # `tokenizers` raises bare Exception
        raise ModelError(SOURCE, f"the model's tokenizer cannot be read: {error}") from error


def _shaped(error: web.HTTPException, request: web.Request) -> web.Response:
    """aiohttp's own refusals (404, 405, 413 and so on) in OpenAI's shape."""
    match error:
        case web.HTTPRequestEntityTooLarge():
            shaped = ApiError(413, f"the request body is larger than {BODY_BYTES} bytes", code="body_too_large")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            message = f"{request.method} is not allowed on {request.path[:200]}; allowed: {allowed}"
            shaped = ApiError(405, message, code="method_not_allowed")
        case web.HTTPNotFound():
            shaped = ApiError(404, f"there is no {request.path[:200]} here", code="not_found")
        case _:
            shaped = ApiError(error.status, error.reason, code="http_error")
    response = shaped.response()
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response
