"""Sends one streamed request to an OpenAI-compatible server and times it from its intended start.

Latency from the intended start is what a user would have waited: a client that is late itself, or that waits for a
connection, hides nothing (coordinated omission; Tene, "How NOT to Measure Latency", 2013).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from pagefleet_cli.bench.profile import MOST, Planned, is_number
from pagefleet_contract.endpoints import SAID

Clock = Callable[[], float]


@dataclass(frozen=True)
class Endpoint:
    """`url` ends in /v1. `chat`: chat completions, else completions."""

    url: str
    model: str
    chat: bool = False
    ignore_eos: bool = True
    key: str = ""

    @property
    def path(self) -> str:
        return f"{self.url}/{'chat/completions' if self.chat else 'completions'}"

    def body(self, planned: Planned) -> dict[str, Any]:
        """Usage is asked for: a chunk may hold several tokens."""
        content = (
            {"messages": [{"role": "user", "content": planned.prompt}]} if self.chat else {"prompt": planned.prompt}
        )
        extra: dict[str, Any] = {"ignore_eos": True} if self.ignore_eos else {}
        if planned.temperature is not None:
            extra["temperature"] = planned.temperature
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": self.model, "max_tokens": planned.output_tokens, **content, **usage, **extra}


@dataclass(frozen=True)
class Sample:
    """The timings of one request, in seconds from its intended start. `error` is its kind, "" for a good answer.

    `late`: how much later than intended it was sent. `tpot`: seconds per token after the first. `at`: intended start,
    seconds after the run's.
    """

    at: float
    late: float
    ttft: float | None
    tpot: float | None
    e2e: float
    prompt_tokens: int
    output_tokens: int
    error: str = ""


@dataclass
class _Stream:
    """The part of an answer that has arrived."""

    first: float | None = None
    last: float | None = None
    chunks: int = 0
    finished: bool = False
    usage: dict[str, Any] | None = None
    error: str = ""


def base(url: str) -> str:
    """Return the URL with /v1 at its end."""
    trimmed = url.rstrip("/")
    return trimmed if trimmed.endswith("/v1") else f"{trimmed}/v1"


async def send(
    session: aiohttp.ClientSession, endpoint: Endpoint, planned: Planned, intended: float, clock: Clock
) -> Sample:
    """One request. `intended` is on `clock`, seconds. Returns a Sample in every case."""
    stream, sent = _Stream(), clock()
    headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
    try:
        async with session.post(endpoint.path, json=endpoint.body(planned), headers=headers) as response:
            if response.status == 200:
                await _read(response, stream, clock)
            else:
                await response.read()
                stream.error = f"HTTP {response.status}"
    except TimeoutError:
        stream.error = "timeout"
    except aiohttp.ClientConnectorError:
        stream.error = "no connection"
    except (aiohttp.ClientError, OSError):
        stream.error = "connection lost"
    except (
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
        HttpProcessingError,
    ):  # no JSON, not an event's form, or a line without end
        stream.error = "malformed event"
    ended = clock()
    if not stream.error and not stream.finished:
        stream.error = "truncated stream"
    tokens = int((stream.usage or {}).get("completion_tokens") or stream.chunks)
    first, last = stream.first, stream.last
    steady = (last - first) / (tokens - 1) if first is not None and last is not None and tokens > 1 else None
    return Sample(
        at=planned.at,
        late=sent - intended,
        ttft=None if first is None else first - intended,
        tpot=steady,
        e2e=ended - intended,
        prompt_tokens=int((stream.usage or {}).get("prompt_tokens") or planned.prompt_tokens),
        output_tokens=tokens,
        error=stream.error,
    )


async def models(session: aiohttp.ClientSession, url: str, key: str = "") -> list[str]:
    """The names of the server's models. Raises aiohttp.ClientError, TimeoutError, ValueError."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with session.get(f"{url}/models", headers=headers) as response:
        response.raise_for_status()
        document = await response.json(content_type=None)
    return [str(entry["id"]) for entry in document["data"]]


async def _read(response: aiohttp.ClientResponse, stream: _Stream, clock: Clock) -> None:
    """Raises ValueError, TypeError, AttributeError or RecursionError for an answer that is no stream of completions."""
    async for line in response.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if event.get("error"):
            stream.error = "error in the stream"
            return
        usage = event.get("usage") or {}
        counts = [usage.get(name) or 0 for name in ("prompt_tokens", "completion_tokens")]
        if not all(is_number(count) and 0 <= count <= MOST for count in counts):
            raise TypeError("a number of tokens is no number of tokens")
        stream.usage = usage or stream.usage
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            if choice.get("text") or any(delta.get(name) for name in SAID):
                stream.last = clock()
                stream.first = stream.last if stream.first is None else stream.first
                stream.chunks += 1
            stream.finished = stream.finished or bool(choice.get("finish_reason"))


def monotonic() -> float:
    """The running loop's clock, on which requests are scheduled."""
    return asyncio.get_running_loop().time()
