"""Starts of the container that fetches a pod's models, as processes: the command that the operator writes, with a cache, a folder of links and a
port of the test's own, and what the operator makes of the container's page and of its end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.engine.api_process import free_port
from support.golden_manifests import child_of, spec_of

from pagefleet_local.base.certificates import Authority
from pagefleet_operator.domain.manifests.model_fetch import container
from pagefleet_operator.domain.runtimes.uris import link_name
from pagefleet_operator.domain.status.observation import FetchReading
from pagefleet_operator.kube.readings import fault
from pagefleet_operator.metrics.engine_readings import parse_fetch


def new_authority(folder: Path) -> Authority:
    """An authority of the test's own, which nobody trusts yet."""
    one = Authority(folder / "ca")
    one.ensure()
    return one


class Fetching:
    """Starts for the model `uri`, with one cache, one folder of links and one of pull secrets. `environment` is what the pod's spec gives the
    container, and `spec` more of the spec."""

    def __init__(self, folder: Path, uri: str, environment: dict[str, str], spec: dict[str, Any] | None = None) -> None:
        self.folder, self.uri, self.environment, self.port, self.spec = (
            folder,
            uri,
            environment,
            free_port(),
            spec or {},
        )
        self.secrets = folder / "pull-secrets"
        self.termination = folder / "termination"

    def command(self, uri: str) -> list[str]:
        spec = spec_of("minimal")
        spec["model"] = {**spec["model"], **self.spec.get("model", {}), "source": uri}
        spec["pod"] = self.spec.get("pod", {})
        amounts = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
        written = container(child_of(spec), "1.2.3", amounts, [])
        assert written is not None
        own = {
            "--cache": self.folder / "cache", "--into": self.folder / "models", "--port": self.port,
            "--pull-secrets": self.secrets,
        }  # fmt: skip
        args = [f"{flag}={own.get(flag, value)}" for flag, _, value in (one.partition("=") for one in written["args"])]
        return [sys.executable, "-m", "pagefleet_fetch.main", *args]

    @contextmanager
    def started(self, uri: str = "") -> Iterator[subprocess.Popen[str]]:
        self.termination.unlink(missing_ok=True)
        told = {"PAGEFLEET_TERMINATION_LOG": str(self.termination), **self.environment}
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH")}
        process = subprocess.Popen(
            self.command(uri or self.uri),
            env={**kept, **told},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def run(self, uri: str = "") -> tuple[int, str]:
        """Its exit status and output."""
        with self.started(uri) as process:
            output, _ = process.communicate(timeout=300)
            return process.returncode, output

    @property
    def model(self) -> Path:
        return self.folder / "models" / link_name(self.uri)

    def present(self) -> dict[str, bytes]:
        """The model's files by name."""
        found = [path for path in self.model.rglob("*") if path.is_file() and not path.name.startswith(".")]
        return {str(path.relative_to(self.model)): path.read_bytes() for path in found}

    def reading(self) -> FetchReading | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                return parse_fetch(answer.read().decode())
        except OSError:
            return None

    def read_until(self, fetched: int) -> FetchReading:
        """The first reading with so many bytes."""
        found: list[FetchReading] = []

        def arrived() -> bool:
            found.extend([reading] if (reading := self.reading()) is not None and reading.fetched >= fetched else [])
            return bool(found)

        self.until(arrived, f"{fetched} bytes are there")
        return found[0]

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until the condition holds. Raises TimeoutError after five minutes."""
        end = time.monotonic() + 300
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError(f"five minutes, and not yet: {what}")
            time.sleep(0.05)

    def told(self, status: int) -> tuple[str, str, str]:
        """Reason, field and message that the operator makes of the container's end."""
        ended = {"exitCode": status, "message": self.termination.read_text()}
        waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
        found = fault(
            {"initContainerStatuses": [{"name": "fetch", "state": waiting, "lastState": {"terminated": ended}}]}
        )
        assert found is not None
        return found.reason, found.field, found.message
