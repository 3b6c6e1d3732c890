"""Runs one batches server as a process: settings, logging, signals, exit status. Decides nothing about batches."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import uvloop
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from pagefleet_batches.access import Access
from pagefleet_batches.manager import Manager
from pagefleet_batches.metrics import Metrics
from pagefleet_batches.sending.answers import Answer
from pagefleet_batches.sending.gateway import GatewayClient
from pagefleet_batches.settings import Settings, settings_from
from pagefleet_batches.storage import disk
from pagefleet_batches.storage.batches import Batches
from pagefleet_batches.storage.files import Files
from pagefleet_batches.web import Api
from pagefleet_contract.addresses import listening_socket
from pagefleet_gateway.limits.api_keys import KeyFileError
from pagefleet_gateway.log_writer import JSONLines
from pagefleet_gateway.settings import SettingError

log = logging.getLogger(__name__)


class Server:
    """A running server: use it as a context manager, and wait for `failed`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.port, self.internal_port = settings.port, settings.internal_port
        self._closing = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Server:
        try:
            await self._start()
        except BaseException:
            await self._closing.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._closing.aclose()

    async def _start(self) -> None:
        """Raises FolderInUse and KeyFileError."""
        settings = self.settings
        self._closing.callback(os.close, disk.lock(settings.folder))
        gateway = await self._closing.enter_async_context(GatewayClient(settings.gateway_url, settings.gateway_ca))
        self.access = Access(settings.api_keys_file, settings.key_file, gateway.probe, self.metrics.keys_valid)

        async def post(path: str, body: bytes, client: str) -> Answer:
            return await gateway.post(path, body, self.access.line_key, client)

        self.manager = Manager(
            settings,
            await asyncio.to_thread(Files, settings.folder),
            await asyncio.to_thread(Batches, settings.folder),
            post,
            self.metrics,
            may_send=lambda: not self.access.reason,
            own_key=lambda: bool(self.access.line_key),
            scope=self.access.scope,
        )
        self._closing.push_async_callback(self.manager.close)
        self.manager.start()
        api = Api(settings, self.access, self.manager).application()
        self.port = await self._listen(api, settings.port)
        self.internal_port = await self._listen(self._internal(), settings.internal_port)
        for work in (self.access.follow(), self.manager.follow()):
            task = asyncio.create_task(work)
            task.add_done_callback(self._ended)
            self._closing.callback(task.cancel)

    @property
    def failed(self) -> asyncio.Future[None]:
        """Done with the error that ends the server."""
        return self.manager.failed

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not self.failed.done():
            self.failed.set_exception(task.exception() or RuntimeError("a task ended unasked"))

    async def _listen(self, app: web.Application, port: int) -> int:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        await runner.setup()
        self._closing.push_async_callback(runner.cleanup)
        await web.SockSite(runner, listening_socket(self.settings.address, port)).start()
        bound: int = runner.addresses[0][1]
        return bound

    def _internal(self) -> web.Application:
        async def healthz(_: web.Request) -> web.Response:
            return web.Response(text="ok\n")

        async def readyz(_: web.Request) -> web.Response:
            reason = self.access.reason
            return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

        async def metrics(_: web.Request) -> web.Response:
            self.metrics.ready.set(not self.access.reason)
            body = generate_latest(self.metrics.registry)
            return web.Response(body=body, headers={"content-type": CONTENT_TYPE_LATEST})

        app = web.Application()
        app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
        return app


async def serve(settings: Settings, on_start: Callable[[Server], None] = lambda _: None) -> None:
    """Run until SIGTERM or SIGINT. Raises what ends the server."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Server(settings) as server:
        log.info("serving clients on port %d, metrics on port %d", server.port, server.internal_port)
        on_start(server)
        stopping = asyncio.create_task(stop.wait())
        ends: list[asyncio.Future[Any]] = [stopping, server.failed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if server.failed.done():
            server.failed.result()


def run() -> None:
    """The console script `pagefleet-batches`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        settings = settings_from(os.environ)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except (SettingError, KeyFileError) as error:
        log.error("%s", error)
        raise SystemExit(78) from error
    except (OSError, disk.FolderInUse) as error:
        log.error("%s", error, exc_info=None if isinstance(error, disk.FolderInUse) else error)
        raise SystemExit(1) from error
