"""A server with the layout of the Hugging Face hub: a list of a commit's files, redirects of large files to a store on another port, ranges,
ETags, tokens. It breaks connections, sends wrong bytes and pauses as a test asks."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = ".safetensors"


@dataclass
class Hub:
    """`files` by name. Large ones (*.safetensors) come from the store, after a redirect. `breaks` has by file the
    bytes of an answer after which the connection is closed, each used once. `damaged` names files whose last byte is sent wrong, and how often.
    `held` is waited for before each block."""

    name: str
    files: dict[str, bytes]
    token: str = ""
    ranges: bool = True
    breaks: dict[str, list[int]] = field(default_factory=dict)
    damaged: dict[str, int] = field(default_factory=dict)
    refused: list[int] = field(default_factory=list)  # statuses of the next answers
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # path, Range, Authorization
    sent: int = 0  # bytes of bodies of large files
    held: threading.Event = field(default_factory=threading.Event)
    held_after: int | None = None  # bytes
    endpoint: str = ""
    store: str = ""

    def listing(self) -> bytes:
        siblings = []
        for name, data in self.files.items():
            entry: dict[str, object] = {"rfilename": name, "size": len(data)}
            if name.endswith(LARGE):
                entry |= {
                    "blobId": "f" * 40,
                    "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 1},
                }
            else:
                entry["blobId"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            siblings.append(entry)
        return json.dumps({"id": self.name, "sha": COMMIT, "siblings": siblings}).encode()

    def requests(self, part: str) -> list[tuple[str, str, str]]:
        """What was asked whose path contains `part`."""
        return [one for one in self.asked if part in one[0]]


@contextmanager
def served(hub: Hub, address: str = "127.0.0.1") -> Iterator[Hub]:
    """Serve it on two free ports of an address of this machine."""

    class Front(_Handler):
        of = hub

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            if self._refused(path):
                return
            if path.startswith("/api/models/"):
                found = path in (f"/api/models/{hub.name}/revision/{one}" for one in ("main", COMMIT))
                self._all(200 if found else 404, hub.listing() if found else b"{}")
                return
            before = f"/{hub.name}/resolve/{COMMIT}/"
            name = path.removeprefix(before)
            if not path.startswith(before) or name not in hub.files:
                self._all(404, b"")
            elif name.endswith(LARGE):
                self.send_response(302)
                self.send_header("Location", f"{hub.store}/store/{name}?signature=x")
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self._all(200, hub.files[name])

        def _refused(self, path: str) -> bool:
            authorization = self.headers.get("Authorization", "")
            hub.asked.append((path, self.headers.get("Range", ""), authorization))
            if hub.refused:
                self._all(hub.refused.pop(0), b"")
                return True
            if hub.token and authorization != f"Bearer {hub.token}":
                self._all(401, b"")
                return True
            return False

    class Store(_Handler):
        of = hub

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            asked = self.headers.get("Range", "")
            hub.asked.append((path, asked, self.headers.get("Authorization", "")))
            name = path.removeprefix("/store/")
            data = hub.files[name]
            if hub.damaged.get(name, 0):
                hub.damaged[name] -= 1
                data = data[:-1] + bytes([data[-1] ^ 1])
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and hub.ranges else 0
            self.send_response(206 if start else 200)
            self.send_header("ETag", f'"{hashlib.sha256(hub.files[name]).hexdigest()}"')
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            end = start + hub.breaks[name].pop(0) if hub.breaks.get(name) else len(data)
            for at in range(start, min(end, len(data)), 65536):
                if hub.held_after is not None and hub.sent >= hub.held_after:
                    hub.held.wait()
                block = data[at : min(at + 65536, end)]
                self.wfile.write(block)
                hub.sent += len(block)
            if end < len(data):
                self.wfile.flush()
                self.close_connection = True

    with _server(Front, address) as hub.endpoint, _server(Store, address) as hub.store:
        yield hub
        hub.held.set()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    of: Hub

    def _all(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Tests look at `asked`."""


@contextmanager
def _server(handler: type[BaseHTTPRequestHandler], address: str) -> Iterator[str]:
    server = ThreadingHTTPServer((address, 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://{address}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
