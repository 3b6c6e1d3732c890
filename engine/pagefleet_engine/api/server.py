"""The HTTP server: routes, what every request passes through, and the server's life from its start to the drain."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aiohttp import web

from pagefleet_contract.addresses import EVERY, listening_socket
from pagefleet_contract.headers import ATTEMPT_HEADER, REQUEST_ID_HEADER
from pagefleet_contract.names import IS_SLEEPING_PATH, SLEEP_PATH, WAKE_PATH
from pagefleet_engine.api.backend.drain import Drain
from pagefleet_engine.api.backend.engine import EngineClient
from pagefleet_engine.api.backend.models import Models
from pagefleet_engine.api.backend.pins import PinnedPrompts
from pagefleet_engine.api.base.auth import Keys
from pagefleet_engine.api.base.connections import Connections
from pagefleet_engine.api.base.errors import ApiError, last_attempt
from pagefleet_engine.api.base.logs import explain, log
from pagefleet_engine.api.endpoints.admin import Admin
from pagefleet_engine.api.endpoints.completions import Completions
from pagefleet_engine.api.endpoints.embeddings import Embeddings
from pagefleet_engine.api.endpoints.health import HealthEndpoints
from pagefleet_engine.api.endpoints.messages import Messages
from pagefleet_engine.api.endpoints.pins import Pins
from pagefleet_engine.api.endpoints.responses import Responses
from pagefleet_engine.api.endpoints.scores import Scores
from pagefleet_engine.api.endpoints.tokens import Tokens
from pagefleet_engine.api.endpoints.turns import Turns
from pagefleet_engine.api.observability import traces
from pagefleet_engine.api.observability.metrics import Metrics
from pagefleet_engine.api.parameters import NO_DEFAULTS, sampling_defaults
from pagefleet_engine.api.planning.limits import Limits, Rules
from pagefleet_engine.api.planning.plan import Planner
from pagefleet_engine.api.protocols.message_events import error_document
from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.model.checkpoint import source
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.text import pooling, tokenizer

BODY_BYTES = 2 << 20
BACKLOG = 1024
# What uses the engine, and is refused while it cannot serve.
INFERENCE = frozenset({
    "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
    "/v1/embeddings", "/v1/cache/pin", "/v1/rerank", "/rerank", "/v1/score", "/score", "/tokenize", "/detokenize",
})  # fmt: skip
ANTHROPIC = "/v1/messages"  # the paths with Anthropic's form of errors begin so
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class ServeConfig:
    engine: EngineConfig
    served_model_names: tuple[str, ...]
    host: str
    port: int
    limits: Limits
    rules: Rules
    keys: Keys
    drain_timeout: float
    write_timeout: float
    chat_template: Path | None = None
    generation_config: str = "auto"  # auto: requests have the sampling defaults of the checkpoint; vllm: the protocols'
    adapter_root: Path | None = None
    node: int = 0  # above 0: this machine computes and does not serve; `master` is the address of the first one
    master: str = ""

    @property
    def served_model_name(self) -> str:
        return self.served_model_names[0]


class Server:
    """One API process. `run` returns its exit status."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._metrics = Metrics(config.served_model_name, config.engine)
        self._client = EngineClient(config.engine, self._metrics)
        self._drain = Drain(config.drain_timeout, lambda: self._client.open)
        self._models = Models(config.served_model_names, config.engine.adapters)
        self._pinned = PinnedPrompts()
        self._admin = Admin(
            self._client, self._models, self._pinned, self._metrics, config.adapter_root, self._drain.begin
        )
        self._connections: Connections | None = None
        self._traces = traces.start(os.environ)

    async def run(self) -> int:
        config = self._config
        await self._client.start()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain.begin)
        try:
            # Loads beside the engine process, which takes longer.
            loaded = await asyncio.to_thread(_tokenizer, config.engine.model, config.chat_template)
            defaults = await asyncio.to_thread(_sampling_defaults, config)
            rules = replace(config.rules, sampling_defaults=defaults)
            planner = Planner(self._client, loaded, self._models, config.limits, rules)
            # The objects loaded by now stay: a full collection over them would stop the loop for 100 ms, at any request.
            gc.collect()
            gc.freeze()
            runner, listener = await self._serve(planner, loaded)
        except ModelError as error:
            await self._client.stop()
            return explain(error.field, error.message)
        except OSError as error:
            await self._client.stop()
            log("error", f"cannot listen on {config.host}:{config.port}: {error.strerror or error}")
            return 1
        await self._until_end()
        died = not self._drain.over.is_set()
        if died and self._client.failed is None:
            log("error", "the engine process ended")
        # First the engine, so that open streams end with an error event while the connections are there.
        await self._client.stop()
        listener.close()
        await runner.cleanup()
        planner.grammars.close()
        await asyncio.to_thread(self._traces.close)
        failed = self._client.failed
        return explain(failed.field, failed.message) if failed else int(died)

    async def _until_end(self) -> None:
        """Wait until the drain is over, or the engine process has ended."""
        waits = [asyncio.create_task(event.wait()) for event in (self._client.ended, self._drain.over)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _serve(
        self, planner: Planner, loaded: tokenizer.Tokenizer
    ) -> tuple[web.AppRunner, asyncio.AbstractServer]:
        config, client, metrics = self._config, self._client, self._metrics
        completions = Completions(planner, client, loaded, metrics, config.write_timeout)
        made_for = pooling.purpose(source.resolve(config.engine.model))
        embeddings = Embeddings(planner, client, loaded, self._models, metrics, made_for)
        scores = Scores(embeddings, planner, client, loaded, metrics, made_for)
        tokens = Tokens(planner, loaded, self._models)
        turns = Turns(planner, client, loaded, metrics, config.write_timeout)
        responses, messages = Responses(turns), Messages(turns, self._models)
        pins = Pins(planner, client, loaded, metrics, self._pinned, config.engine.page_size)
        observation = HealthEndpoints(client, self._models, metrics, self._unready)
        app = web.Application(client_max_size=BODY_BYTES, middlewares=[self._outermost])
        post, get = app.router.add_post, app.router.add_get
        post("/v1/completions", completions.completion)
        post("/v1/chat/completions", completions.chat)
        post("/v1/responses", responses.create)
        get("/v1/responses/{response}", responses.get)
        get("/v1/responses/{response}/input_items", responses.items)
        app.router.add_delete("/v1/responses/{response}", responses.delete)
        post("/v1/messages", messages.create)
        post("/v1/messages/count_tokens", messages.count_tokens)
        post("/v1/embeddings", embeddings.answer)
        post("/v1/cache/pin", pins.create)
        get("/v1/cache/pins", pins.list)
        app.router.add_delete("/v1/cache/pins/{pin}", pins.delete)
        for prefix in ("/v1", ""):  # vLLM and its clients use both
            post(f"{prefix}/rerank", scores.rerank)
            post(f"{prefix}/score", scores.score)
        post("/tokenize", tokens.tokenize)
        post("/detokenize", tokens.detokenize)
        post("/v1/load_lora_adapter", self._admin.load_adapter)
        post("/v1/unload_lora_adapter", self._admin.unload_adapter)
        post("/drain", self._admin.drain)
        post(SLEEP_PATH, self._admin.sleep)
        post(WAKE_PATH, self._admin.wake_up)
        get(IS_SLEEPING_PATH, self._admin.is_sleeping)
        get("/v1/models", observation.models)
        get("/v1/models/{model:.+}", observation.model)
        get("/health", observation.health)
        get("/ready", observation.ready)
        get("/metrics", observation.metrics)
        get("/version", observation.version)
        get("/openapi.json", observation.openapi)
        # A client that goes away cancels its handler, and with it the request in the engine.
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=5, auto_decompress=False
        )
        await runner.setup()
        if runner.server is None:
            raise RuntimeError("aiohttp made no server")
        self._connections = Connections(runner.server)
        loop = asyncio.get_running_loop()
        if config.host == EVERY:  # asyncio would take IPv6 only
            every = listening_socket(EVERY, config.port, BACKLOG)
            listener = await loop.create_server(self._connections, sock=every, backlog=BACKLOG)
        else:
            listener = await loop.create_server(self._connections, config.host, config.port, backlog=BACKLOG)
        log("info", f"serving {config.served_model_name} on {config.host}:{config.port}")
        return runner, listener

    @web.middleware
    async def _outermost(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the key, refuse while the server is not ready, give every error OpenAI's shape, write a log line."""
        if self._connections is not None:
            self._connections.head_received(request)
        inference = request.path in INFERENCE and request.method == "POST"
        began = time.monotonic()
        status: int | str = "cancelled"
        span = self._traces.begin(request) if inference else traces.of(request)
        request[traces.KEY] = span
        self._drain.count(int(inference))
        try:
            self._config.keys.check(request)
            if inference:
                self._admit()
            response = await handler(request)
            status = response.status
        except ApiError as error:
            reported = last_attempt(error, request.headers.get(ATTEMPT_HEADER, ""))
            response, status = _written(reported, request), reported.status
        except web.HTTPException as error:
            response, status = _shaped(error, request), error.status
        except ConnectionResetError:
            self._metrics.cancellations.inc(int(inference))
            raise
        except asyncio.CancelledError:
            self._metrics.cancellations.inc(int(inference))
            raise
        except Exception as error:
            name = request.headers.get(REQUEST_ID_HEADER)
            log("error", f"{type(error).__name__}: {error}", request_id=name, trace_id=span.trace_id)
            response, status = _written(ApiError(500, "internal error", code="internal_error"), request), 500
        finally:
            self._drain.count(-int(inference))
            if inference:
                span.end(status)
                log(
                    "info",
                    f"{request.method} {request.path}",
                    request_id=request.headers.get(REQUEST_ID_HEADER),
                    trace_id=span.trace_id,
                    status=status,
                    seconds=round(time.monotonic() - began, 4),
                )
        if self._drain.since is not None:
            response.force_close()
        return response

    def _admit(self) -> None:
        """Raises ApiError (503)."""
        if self._admin.sleeping:
            raise ApiError(503, "this server sleeps: POST /wake_up", code="sleeping", retry_after=5)
        if not self._client.healthy:
            raise ApiError(503, "the model is not ready", code="not_ready", retry_after=5)
        if self._drain.refuses:
            raise ApiError(503, "this server is shutting down", code="draining", retry_after=1)

    def _unready(self) -> ApiError | None:
        """Return why this server should get no requests."""
        if self._drain.since is not None:
            return ApiError(503, "draining", code="draining")
        if self._admin.sleeping:
            return ApiError(503, "sleeping", code="sleeping")
        return None if self._client.healthy else ApiError(503, "the model is not ready", code="not_ready")


def _tokenizer(uri: str, chat_template: Path | None) -> tokenizer.Tokenizer:
    """Raises ModelError, also for what the libraries raise on files that are damaged."""
    try:
        return tokenizer.load(source.resolve(uri), chat_template)
    except ModelError:
        raise
    except Exception as error:  # `tokenizers` raises bare Exception
        raise ModelError(SOURCE, f"the model's tokenizer cannot be read: {error}") from error


def _sampling_defaults(config: ServeConfig) -> Mapping[str, Any]:
    """Return the checkpoint's own values of sampling fields that a request does not name. Raises ModelError."""
    found = source.resolve(config.engine.model)
    if config.generation_config != "auto" or found.format is not source.Format.SAFETENSORS:
        return NO_DEFAULTS
    try:
        made = sampling_defaults(source.generation_config(found.path))
    except ApiError as error:
        hint = "--generation-config=vllm leaves the file's sampling values out"
        raise ModelError(SOURCE, f"{source.GENERATION_CONFIG}: {error.message}; {hint}") from None
    if made:
        log("info", f"requests that do not name them have the values of {source.GENERATION_CONFIG}", **made)
    return made


def _written(error: ApiError, request: web.Request) -> web.Response:
    """An error in the form of the path's protocol."""
    return error.response(error_document(error) if request.path.startswith(ANTHROPIC) else None)


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
    response = _written(shaped, request)
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response
