"""Envoy as a part of the gateway: its files, its start, whether it can be used, its drain. Decides nothing about requests."""

from __future__ import annotations

import asyncio
import tempfile
from asyncio.subprocess import Process
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from pagefleet_gateway.cluster.state import State
from pagefleet_gateway.envoy import process as envoy
from pagefleet_gateway.envoy import tls
from pagefleet_gateway.envoy.bootstrap import PLAIN, SECURE, ListenAddress, bootstrap, to_json
from pagefleet_gateway.envoy.clusters import Paths
from pagefleet_gateway.envoy.connections import EnvoyLimits
from pagefleet_gateway.envoy.endpoints import Endpoints
from pagefleet_gateway.envoy.module import library
from pagefleet_gateway.measuring.first_tokens import FirstToken, FirstTokens, StreamError
from pagefleet_gateway.settings import STOP_SECONDS, Settings

START_SECONDS = 60.0  # for Envoy to become live


class GatewayError(RuntimeError):
    """A part of the gateway cannot start, or ended unasked. The message names it."""


class Proxy:
    """Envoy and what it shares with the picker. `close` what `start` opened with the stack that was given to it.

    `on_usable` is called once, right before requests can be answered.
    """

    def __init__(self, settings: Settings, state: State, on_usable: Callable[[], object]) -> None:
        self._on_usable = on_usable
        self._settings = settings
        self._state = state
        self._folder = tempfile.TemporaryDirectory(prefix="gateway-", dir=settings.temporary)
        self.paths = Paths(Path(self._folder.name))
        self.port = settings.port
        self.tls_port = settings.tls_port
        self.process: Process | None = None
        self._endpoints = Endpoints(state, self.paths.endpoints)
        self._admin: envoy.Admin | None = None
        self._live = False
        self._first_pods: frozenset[str] | None = None  # uids of the pods that there were when the watch was ready
        self._usable = False

    def open(self, closing: AsyncExitStack) -> None:
        """Have the private folder removed at the gateway's end."""
        closing.callback(self._folder.cleanup)

    async def start(self, closing: AsyncExitStack, on_report: Callable[[FirstToken | StreamError], object]) -> Process:
        """Start Envoy; `on_report` gets what its filters report. The picker must listen already. Raises GatewayError when Envoy does not become live."""
        try:
            library.require_release(envoy.version())
            filters = await asyncio.to_thread(library.compile_library)
        except library.LibraryError as error:
            raise GatewayError(str(error)) from error
        self._write_configuration()
        self.first_tokens = FirstTokens(self.paths.first_tokens, on_report)
        closing.callback(self.first_tokens.close)
        self.process = await envoy.start(self.paths.bootstrap, self._settings.workers, filters.parent)
        closing.push_async_callback(envoy.stop, self.process, STOP_SECONDS)
        self._admin = envoy.Admin(self.paths.admin)
        closing.push_async_callback(self._admin.close)
        await self._until_live(self.process, self._admin)
        if self._settings.plaintext:
            self.port = await self._admin.port(PLAIN)
        if self._settings.tls_folder is not None:
            self.tls_port = await self._admin.port(SECURE)
        return self.process

    async def follow(self) -> None:
        """Keep Envoy's endpoints equal to the state's pods until cancelled."""
        if self._admin is None:
            raise GatewayError("Proxy.follow() was called before Proxy.start()")
        await self._endpoints.follow(self._admin)

    async def drain(self) -> None:
        if self._admin is not None:
            await self._admin.drain()

    def not_ready_reason(self, unsynced_reason: Callable[[], str]) -> str:
        """Return why requests cannot be answered yet, "" when they can: Envoy is live, the watch is ready, and Envoy has
        loaded every pod that there was at that moment."""
        if not self._live:
            return "Envoy is not live yet"
        if reason := unsynced_reason():
            return reason
        if self._usable:
            return ""
        if self._first_pods is None:
            self._first_pods = frozenset(pod.uid for pod in self._state.pods if not pod.prefills)
        first = [pod for pod in self._state.pods if pod.uid in self._first_pods]
        if self._endpoints.loaded and self._state.are_confirmed(first):
            self._usable = True
            self._on_usable()
            return ""
        return f"Envoy has not loaded the endpoints of the first {len(first)} engine pods yet"

    def _write_configuration(self) -> None:
        settings = self._settings
        limits = EnvoyLimits(settings.max_request_bytes, settings.max_connections, settings.max_heap_bytes)
        listen = ListenAddress(
            settings.address,
            settings.port if settings.plaintext else None,
            settings.tls_port if settings.tls_folder else None,
        )
        if settings.tls_folder is not None:
            self.paths.certificate.write_text(to_json(tls.certificate_discovery(settings.tls_folder)))
        document = bootstrap(settings.pod_name, listen, self.paths, limits, settings.spans, settings.batches)
        self.paths.bootstrap.write_text(to_json(document))
        self._endpoints.write()

    async def _until_live(self, process: Process, admin: envoy.Admin) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                while not await admin.ready():
                    if process.returncode is not None:
                        raise GatewayError(
                            f"Envoy ended at its start with status {process.returncode}; its log lines name the cause"
                        )
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise GatewayError(
                f"Envoy was not live within {START_SECONDS:.0f} s; its log lines name the cause"
            ) from error
        self._live = True
