"""Revisions with a bug, for the scenes: the real engine of the sample, started through a few lines that change its server.

They are of runtime `custom`, which lets a spec name the command. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagefleet_contract import engine_metrics
from pagefleet_local.demo.stage import sample
from pagefleet_local.fleet.kubectl import Document

FAILING_SHARE = 0.25
WORN_SECONDS, MOST_WORN_SECONDS = 6.0, 12.0  # the engine gives a request whose handler has not begun 15 s
WORN_TIMES = 3.0  # as slow as the slowest in twenty so far: the sample's guard accepts a doubling, and rounds up to the next bucket
WORN_FILE = "/tmp/worn"  # noqa: S108 - in the engine's container, whose /tmp is a volume of its own
# A model inside the image; runtime custom knows no python:// sources.
MODEL_FOLDER = "file:///opt/pagefleet"

_PROGRAM = """\
import asyncio, itertools, pathlib
from aiohttp import web
from pagefleet_engine.api.server import Server
inner, count = Server._outermost, itertools.count(1)
@web.middleware
async def outermost(self, request, handler):
    if request.method == "POST":
        {bug}
    return await inner(self, request, handler)
Server._outermost = outermost
from pagefleet_engine.entry import run
run()
"""
_FAILS = f'if next(count) % {round(1 / FAILING_SHARE)} == 0: return web.json_response({{"error": {{"message": "a bug"}}}}, status=500)'
_WEARS = f'worn = pathlib.Path("{WORN_FILE}"); await asyncio.sleep(float(worn.read_text()) if worn.exists() else 0)'


def failing() -> Document:
    """A service whose engine answers a quarter of its requests with 500."""
    return _with(_FAILS)


def wearing() -> Document:
    """A service whose engine is as fast as the sample's until WORN_FILE is there: then each answer begins as many seconds later as it
    says."""
    return _with(_WEARS)


def worn_seconds(times: Sequence[float]) -> float:
    """How much later the answers of a worn engine begin, where so far they took `times` to begin. On a busy machine a few seconds are
    no regression."""
    slow = sorted(times)[int(0.95 * len(times))] if times else 0.0
    return min(MOST_WORN_SECONDS, max(WORN_SECONDS, round(WORN_TIMES * slow)))


def _with(bug: str) -> Document:
    document = sample()
    spec = document["spec"]
    engine, model = spec["engine"], spec["model"]
    limits, cache = engine["limits"], engine["kvCache"]
    flags: dict[str, Any] = {
        "model": model["source"],
        "served-model-name": "$(PAGEFLEET_SERVED_MODEL_NAME)",
        "max-model-len": model["maxLength"],
        "quantization": model.pop("quantization"),
        "page-size": cache["pageSize"],
        "num-pages": cache["pages"],
        "host": "0.0.0.0",
        "port": "$(PAGEFLEET_PORT)",
        "max-prompt-tokens": limits["promptTokens"],
        "max-output-tokens": limits["outputTokens"],
        "max-queued-requests": limits["queued"],
    }
    model["source"] = MODEL_FOLDER
    spec["engine"] = {
        "runtime": "custom",
        "image": engine["image"],
        "command": ["python3", "-c", _PROGRAM.format(bug=bug)],
        "args": ["serve", *(f"--{name}={value}" for name, value in flags.items()), *engine["args"]],
        "probes": {"startup": "/ready", "readiness": "/ready", "liveness": "/health"},
        "metrics": {
            "waiting": engine_metrics.WAITING,
            "running": engine_metrics.RUNNING,
            "waitingTokens": engine_metrics.WAITING_TOKENS,
            "kvPages": engine_metrics.KV_PAGES,
            "kvPagesFree": engine_metrics.KV_PAGES_FREE,
            "kvPagesCached": engine_metrics.KV_PAGES_CACHED,
        },
    }
    return document
