"""Answers the requests that wait in a picker whose event loop hangs: a thread closes their connections, and Envoy sends 503.

Envoy learns of a picker that hangs by its health check (picker_health.py), and then sends it no further request. A request that is
held already may wait for minutes, so Envoy cannot bound its wait. Decides only whether the loop hangs; never touches one that runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time

log = logging.getLogger(__name__)

BEAT_SECONDS = 0.5
HANG_SECONDS = 3.0  # without a beat


class HangGuard:
    """A loop's beats and the sockets that are closed when they stop. Sockets are known by their descriptors."""

    def __init__(self, hang_seconds: float = HANG_SECONDS) -> None:
        self._hang_seconds = hang_seconds
        self._lock = threading.Lock()  # a descriptor is closed only after `forget`, which waits for it
        self._listener = -1
        self._connections: set[int] = set()
        self._beat = time.monotonic()
        self._ended = threading.Event()

    async def follow(self) -> None:
        """Beat until cancelled."""
        self._beat = time.monotonic()
        thread = threading.Thread(target=self._watch, name="hang guard", daemon=True)
        thread.start()
        try:
            while True:
                self._beat = time.monotonic()
                await asyncio.sleep(BEAT_SECONDS)
        finally:
            self._ended.set()

    def listen(self, descriptor: int) -> None:
        """Close the connections that wait at this socket, too."""
        self._listener = descriptor

    def remember(self, descriptor: int) -> None:
        self._connections.add(descriptor)

    def forget(self, descriptor: int) -> None:
        with self._lock:
            self._connections.discard(descriptor)

    def hangs(self) -> bool:
        """Return whether the loop hangs. Any thread may ask."""
        return time.monotonic() - self._beat > self._hang_seconds

    def _watch(self) -> None:
        closed = False
        while not self._ended.wait(BEAT_SECONDS / 2):
            hangs = self.hangs()
            if hangs and not closed:
                log.error(
                    "the picker hangs: closing the connections of %d requests and idle ones", len(self._connections)
                )
            if hangs:
                self._close_all(known=not closed)
            closed = hangs

    def _close_all(self, known: bool) -> None:
        """`known`: connections that the loop has accepted. Those that it has not come at any time."""
        with self._lock:
            for descriptor in tuple(self._connections) if known else ():
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
                    copy.shutdown(socket.SHUT_RDWR)
        if self._listener >= 0:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._listener)) as listener:
                while True:
                    listener.accept()[0].close()
