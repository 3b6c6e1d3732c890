"""Puts the gateway together: Envoy, the picker beside it, the watch, the internal HTTP; ends when one of them does.

Decides nothing about requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import Callable
from pathlib import Path

import uvloop
from aiohttp import web

from . import accesslog, envoy
from .authz import Front
from .bootstrap import Limits, Paths, bootstrap, written
from .endpoints import Endpoints
from .kube import watch_cluster
from .ledger import Ledger
from .metrics import Metrics
from .picker import Pick, Picker, Request
from .routing import Refusal
from .settings import SettingError, Settings, settings_from
from .state import State
from .web import application
from .windows import Windows

log = logging.getLogger(__name__)

START_SECONDS = 60.0
SWEEP_SECONDS = 5.0


class GatewayError(RuntimeError):
    """A part of the gateway ended by itself; the message says which."""


class Gateway:
    """A running gateway: `start`, then `run` until a stop is asked for, then `close`.

    `emit` gets each access-log line as the gateway shows it.
    """

    def __init__(self, settings: Settings, state: State, emit: Callable[[bytes], object]) -> None:
        self.settings = settings
        self.state = state
        self.ledger = Ledger()
        # The draw needs no secrecy, only an order that clients do not share.
        self.picker = Picker(state, self.ledger, random.Random(secrets.randbits(64)))  # noqa: S311
        self.metrics = Metrics(self.ledger)
        self.windows = Windows(f"{settings.pod_name}-{secrets.token_hex(4)}")
        self.synced: Callable[[], str] = lambda: ""  # why the watch is not ready, "" when it is
        self.port = settings.port
        self.internal_port = settings.internal_port
        self._emit = emit
        self._draining = False
        self._folder = tempfile.TemporaryDirectory(prefix="gateway-", dir=settings.temporary)
        self._paths = Paths(Path(self._folder.name))
        self._endpoints = Endpoints(state, self._paths.endpoints)
        self._closing = contextlib.AsyncExitStack()
        self._envoy: Process | None = None
        self._admin: envoy.Admin | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Serve. Raises GatewayError when Envoy does not come up."""
        loop = asyncio.get_running_loop()
        self._closing.callback(self._folder.cleanup)
        server = await loop.create_unix_server(lambda: Front(self._decide), str(self._paths.picker), backlog=1024)
        self._closing.callback(server.close)
        await self._serve_internal()
        limits = Limits(self.settings.max_request_bytes)
        document = bootstrap(
            self.settings.pod_name, self.settings.address, self.settings.port, self._paths, limits
        )
        self._paths.bootstrap.write_text(written(document))
        self._endpoints.write()
        self._envoy = await envoy.start(self._paths.bootstrap, self.settings.workers)
        self._closing.push_async_callback(envoy.stop, self._envoy, 5.0)
        self._admin = envoy.Admin(self._paths.admin)
        self._closing.push_async_callback(self._admin.close)
        await self._until_live(self._envoy, self._admin)
        self.port = await self._admin.port()
        self._spawn("access log", self._read_log(self._envoy))
        self._spawn("endpoints", self._endpoints.follow(self._admin))
        self._spawn("sweep", self._sweep())

    def _spawn(self, name: str, work: Callable[[], None] | object) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._closing.aclose()
