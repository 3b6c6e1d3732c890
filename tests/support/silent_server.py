"""An API server that takes connections and never answers, and a kubeconfig for it with a certificate and a key in it."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pagefleet_local.base.certificates import Authority

SECONDS = 60.0


@contextmanager
def asking(command: Sequence[str], folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start a command, which gets the kubeconfig as KUBECONFIG, and wait until it has connected. Yield it and the folder of its temporary
    files."""
    temporary, authority = folder / "temporary", Authority(folder / "pki")
    temporary.mkdir()
    authority.ensure()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SECONDS)
        pair = authority.issue("admin", "admin", ["system:masters"])
        path = authority.kubeconfig(folder / "kubeconfig", f"https://127.0.0.1:{server.getsockname()[1]}", pair)
        environment = {**os.environ, "KUBECONFIG": str(path), "TMPDIR": str(temporary)}
        with subprocess.Popen(command, env=environment) as process:
            try:
                connection, _ = server.accept()
                with connection:
                    yield process, temporary
            finally:
                process.kill()
