"""The server's reports about itself: its models, health and readiness, metrics, version and OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

from aiohttp import web

from pagefleet_engine.api.backend.engine import EngineClient
from pagefleet_engine.api.backend.models import Models
from pagefleet_engine.api.base.errors import ApiError
from pagefleet_engine.api.endpoints import openapi
from pagefleet_engine.api.observability.metrics import Metrics


class HealthEndpoints:
    """`unready` says why the server should get no requests, or None."""

    def __init__(
        self, client: EngineClient, models: Models, metrics: Metrics, unready: Callable[[], ApiError | None]
    ) -> None:
        self._client, self._models, self._metrics, self._unready = client, models, metrics, unready

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self._models.documents(self._length())})

    async def model(self, request: web.Request) -> web.Response:
        return web.json_response(self._models.document(request.match_info["model"], self._length()))

    async def health(self, _: web.Request) -> web.Response:
        """Whether the process should live on. Raises ApiError (503) when its engine hangs: only a restart fixes that."""
        if self._client.stalled:
            raise ApiError(503, "the engine owes an answer and has sent nothing for a minute", code="engine_stalled")
        return web.json_response({"status": "ok"})

    async def ready(self, _: web.Request) -> web.Response:
        error = self._unready()
        if error is not None:
            raise error
        return web.json_response({"status": "ready"})

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": version("pagefleet")})

    async def openapi(self, _: web.Request) -> web.Response:
        names = [document["id"] for document in self._models.documents(None)]
        return web.json_response(openapi.document(names))

    def _length(self) -> int | None:
        ready = self._client.ready
        return ready.max_model_len if ready else None
