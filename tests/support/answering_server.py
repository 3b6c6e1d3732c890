"""An API server that answers as a test says, over real HTTP, and a kubeconfig for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from pagefleet_contract.names import ACTION_ANNOTATION

Document = dict[str, Any]
# A document, what makes one of the action that was requested last, or the status of an error; 0: the connection ends without an answer.
Answer = Document | Callable[[Document], Document] | int
CUT = 0


@contextmanager
def api_server(folder: Path, answers: list[Answer], message: str = "etcdserver: request timed out") -> Iterator[Path]:
    """Answer each request with the next of `answers`, which are taken out of the list. `message` is that of every error. Yields the path of
    the kubeconfig."""

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requested.append(json.loads(body["metadata"]["annotations"][ACTION_ANNOTATION]))
            self._answer()

        def _answer(self) -> None:
            answer = answers.pop(0)
            if answer == CUT:
                return
            if isinstance(answer, int):
                body = {"kind": "Status", "message": message}
            else:
                body = answer(requested[-1]) if callable(answer) else answer
            data = json.dumps(body).encode()
            self.send_response(answer if isinstance(answer, int) else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are no news."""

    requested: list[Document] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "own", "context": {"cluster": "c", "user": "u", "namespace": "a"}}],
            "current-context": "own",
        }
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        try:
            yield path
        finally:
            server.shutdown()
