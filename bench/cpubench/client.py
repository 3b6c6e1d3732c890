"""Sends the requests of a workload to an OpenAI-compatible server and takes the time of every piece of the answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import aiohttp

from cpubench.measures import Answer
from cpubench.workload import Request


async def drive(url: str, model: str, requests: Sequence[Request], timeout: float) -> list[Answer]:
    """Every request at its time, each on a connection of its own. Raises RuntimeError when an answer is not whole."""
    limits = aiohttp.ClientTimeout(total=timeout)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=limits) as session:
        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_ask(session, url, model, request, start)) for request in requests]
    return [task.result() for task in tasks]


async def _ask(session: aiohttp.ClientSession, url: str, model: str, request: Request, start: float) -> Answer:
    await asyncio.sleep(start + request.at - time.perf_counter())
    body: dict[str, Any] = {
        "model": model, "prompt": list(request.prompt), "max_tokens": request.output, "temperature": request.temperature,
        "ignore_eos": not request.to_the_end, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    if request.temperature:
        body |= {"top_k": 0, "top_p": 1.0, "min_p": 0.0}  # each system has other defaults
    sent = time.perf_counter() - start
    events: list[tuple[float, bytes]] = []
    async with session.post(f"{url}/v1/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {(await response.text())[:500]}")
        async for line in response.content:
            if line.startswith(b"data: {"):
                events.append((time.perf_counter() - start, line))
    # Reading the events waits for the end of the answer: the server uses the same cores.
    times: list[float] = []
    pieces: list[str] = []
    usage: dict[str, Any] = {}
    for now, line in events:
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(f"a stream ended with {event['error']}")
        if event.get("choices"):
            times.append(now)
            pieces.append(event["choices"][0].get("text") or "")
        usage = event.get("usage") or usage
    tokens = int(usage.get("completion_tokens") or 0)
    whole = 0 < tokens <= request.output if request.to_the_end else tokens == request.output
    if not (whole and times):
        raise RuntimeError(f"asked for {request.output} tokens, got {tokens} in {len(times)} pieces")
    return Answer(sent, tuple(times), int(usage["prompt_tokens"]), tokens, "".join(pieces))
