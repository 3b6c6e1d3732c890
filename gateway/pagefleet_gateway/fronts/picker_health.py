"""Answers Envoy's question whether the picker lives, from a thread of its own, on a Unix socket of its own.

A picker that was late for a moment first works through the requests that came meanwhile. On its event loop the answer would wait
behind them all, and Envoy would take a picker that works for one that hangs, and refuse every request.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    block_on_close = False


@contextmanager
def serve_health(path: Path, hangs: Callable[[], bool]) -> Iterator[None]:
    """Answer every GET at the Unix socket `path` until the block ends: 503 while `hangs()`, else 200."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # Envoy keeps its connection

        def do_GET(self) -> None:
            self.send_response(503 if hangs() else 200)
            self.send_header("content-length", "0")
            with contextlib.suppress(ConnectionError):  # Envoy waits for its answer 1.5 s
                self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing: Envoy asks twice a second."""

    path.unlink(missing_ok=True)
    with _Server(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="picker health", daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
