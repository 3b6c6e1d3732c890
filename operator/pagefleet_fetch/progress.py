"""How far a fetch is: bytes, and bytes per second of the last minute, as a page in Prometheus' format. Pure but for the page's server."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pagefleet_contract.addresses import every_address, listening_socket
from pagefleet_contract.engine_metrics import METRICS_PATH
from pagefleet_contract.model_fetch import BYTES, BYTES_PER_SECOND, FETCHED_BYTES

WINDOW_SECONDS = 60.0
TICK_SECONDS = 1.0


class Meter:
    """`total` and `done` are bytes. `done` is asked at each tick: another pod may bring the same files into the same cache."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()
        self._total = 0
        self._done: Callable[[], int] = int

    def begin(self, total: int, done: Callable[[], int]) -> None:
        """The next model of `total` bytes is fetched."""
        with self._lock:
            self._total, self._done = total, done
            self._samples.clear()

    def tick(self, now: float) -> None:
        """Take a sample."""
        with self._lock:
            self._samples.append((now, self._done()))
            while len(self._samples) > 2 and self._samples[1][0] <= now - WINDOW_SECONDS:
                self._samples.popleft()

    def page(self) -> str:
        """The gauges. The speed is left out while it is too early to tell that nothing arrives."""
        with self._lock:
            samples = list(self._samples)
            lines = {BYTES: self._total, FETCHED_BYTES: samples[-1][1] if samples else 0}
            if (speed := rate(samples)) or (samples and samples[-1][0] - samples[0][0] >= WINDOW_SECONDS):
                lines[BYTES_PER_SECOND] = round(speed)
        return "".join(f"# TYPE {name} gauge\n{name} {value}\n" for name, value in lines.items())


def rate(samples: list[tuple[float, int]]) -> float:
    """Bytes per second from the first sample to the last; 0 where they are at the same time."""
    if len(samples) < 2 or samples[-1][0] <= samples[0][0]:
        return 0.0
    (began, first), (ended, last) = samples[0], samples[-1]
    return max(0.0, (last - first) / (ended - began))


def serve(meter: Meter, port: int) -> ThreadingHTTPServer:
    """Serve the page in a thread, and sample each second in another. Both end with the process."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == METRICS_PATH
            text = meter.page().encode() if known else b""
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are no news."""

    server = ThreadingHTTPServer(("", port), Page, bind_and_activate=False)
    server.socket.close()  # of IPv4
    server.socket = listening_socket(every_address(), port)
    server.server_address = server.socket.getsockname()
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=_tick, args=(meter,), daemon=True).start()
    return server


def _tick(meter: Meter) -> None:
    while True:
        meter.tick(time.monotonic())
        time.sleep(TICK_SECONDS)
