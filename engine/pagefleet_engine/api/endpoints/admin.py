"""Administration of a server: drain, sleep and wake; load and unload LoRA adapters.

The adapters' and sleep's endpoints are vLLM's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from aiohttp import web

from pagefleet_engine.api.backend.engine import EngineClient, EngineDied
from pagefleet_engine.api.backend.models import Models
from pagefleet_engine.api.backend.pins import PinnedPrompts
from pagefleet_engine.api.base.errors import ApiError, invalid
from pagefleet_engine.api.base.logs import log
from pagefleet_engine.api.observability.metrics import Metrics
from pagefleet_engine.api.parameters import body, fields, others
from pagefleet_engine.core.messages import Command, LoadAdapter, Sleep, UnloadAdapter, Wake


class Admin:
    """The endpoints. `adapter_root` None: adapters cannot be loaded at run time. `drain` starts the drain."""

    def __init__(
        self,
        client: EngineClient,
        models: Models,
        pinned: PinnedPrompts,
        metrics: Metrics,
        adapter_root: Path | None,
        drain: Callable[[], None],
    ) -> None:
        self._client, self._models, self._pinned, self._metrics = client, models, pinned, metrics
        self._root, self._drain = adapter_root, drain
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[web.Response]] = set()
        self.sleeping = False

    async def drain(self, _: web.Request) -> web.Response:
        self._drain()
        return web.json_response({"status": "draining"}, status=202)

    async def sleep(self, request: web.Request) -> web.Response:
        level = request.query.get("level", "1")
        if level not in ("1", "2"):
            raise invalid("level", f"level must be 1 or 2, not {level[:40]!r}")
        return await self._whole(self._to_sleep(int(level)))

    async def wake_up(self, _: web.Request) -> web.Response:
        return await self._whole(self._awake())

    async def is_sleeping(self, _: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": self.sleeping})

    async def load_adapter(self, request: web.Request) -> web.Response:
        asked = fields.read(await body.document(request), others.LOAD_ADAPTER, others.ADAPTER_NOT_SUPPORTED)
        path = self._path(asked["lora_path"])
        return await self._whole(self._load(asked["lora_name"], path))

    async def unload_adapter(self, request: web.Request) -> web.Response:
        asked = fields.read(await body.document(request), others.UNLOAD_ADAPTER, others.ADAPTER_NOT_SUPPORTED)
        self._check_allowed()
        return await self._whole(self._unload(asked["lora_name"]))

    async def _to_sleep(self, level: int) -> web.Response:
        if self._client.open:
            raise ApiError(409, f"{self._client.open} requests are open; drain them first", code="requests_open")
        before, self.sleeping = self.sleeping, True  # from here on requests are refused
        try:
            await self._command(lambda number: Sleep(number, level), 409, "cannot_sleep", None)
        except ApiError:
            self.sleeping = before
            raise
        finally:
            self._metrics.asleep.set(self.sleeping)
        self._pinned.clear()
        log("info", f"sleeps at level {level}")
        return web.json_response({"is_sleeping": True})

    async def _awake(self) -> web.Response:
        await self._command(Wake, 503, "cannot_wake", None)
        self.sleeping = False
        self._metrics.asleep.set(False)
        log("info", "is awake")
        return web.json_response({"is_sleeping": False})

    async def _load(self, name: str, path: Path) -> web.Response:
        self._models.check_new(name)
        await self._command(lambda n: LoadAdapter(n, name, str(path)), 400, "adapter_refused", "lora_path")
        log("info", f"loaded the adapter {name}")
        return web.json_response(self._models.add(name, str(path)))

    async def _unload(self, name: str) -> web.Response:
        self._models.check_loaded(name)
        await self._command(lambda number: UnloadAdapter(number, name), 409, "adapter_in_use", "lora_name")
        self._models.remove(name)
        for pin in self._pinned.remove_model(name):
            self._client.unpin(pin)
        log("info", f"unloaded the adapter {name}")
        return web.json_response({"id": name, "object": "model", "deleted": True})

    async def _whole(self, work: Coroutine[Any, Any, web.Response]) -> web.Response:
        """Run `work` after the commands before it, to its end even when the client leaves: its result must be known here."""

        async def in_turn() -> web.Response:
            async with self._turn:
                return await work

        task = asyncio.create_task(in_turn())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _command(self, make: Callable[[int], Command], status: int, code: str, param: str | None) -> None:
        """Raises ApiError: `status` with why the engine cannot, 503 when it has ended or is not there yet."""
        if self._client.ready is None:
            raise ApiError(503, "the model is still loading", code="not_ready", retry_after=5)
        try:
            error = await self._client.command(make)
        except EngineDied as died:
            raise ApiError(503, str(died), code=died.code) from died
        if error is not None:
            raise ApiError(status, error[:500], param=param, code=code)

    def _check_allowed(self) -> Path:
        if self._root is None:
            message = "this server was not started with --allow-runtime-adapters"
            raise ApiError(403, message, code="adapters_not_allowed")
        return self._root

    def _path(self, given: str) -> Path:
        """The adapter's folder, links followed, if it lies under the root. Raises ApiError (400, 403)."""
        root = self._check_allowed().resolve()
        try:
            path = (root / given).resolve()
            folder = path.is_dir()
        except (OSError, ValueError, RuntimeError):
            raise invalid("lora_path", "lora_path is no path") from None
        if not path.is_relative_to(root):
            raise invalid("lora_path", "lora_path must lie under the server's --adapter-root")
        if not folder:
            raise invalid("lora_path", "lora_path is no folder")
        return path
