"""An open-loop stream of chat requests through the gateway, every answer recorded as the client received it.

Open loop: arrivals are a Poisson process of the set rate and never wait for answers, so a slow server shows as
latency rather than as fewer requests.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass

import aiohttp

from pagefleet_contract.headers import REVISION_HEADER

TOPICS = (
    "a canary release", "the moon", "tea", "a paged cache", "rivers", "sleep", "a mountain hut", "bread", "clouds",
    "a rollback", "trains", "the number seven", "a lighthouse", "honey bees", "maps", "a violin",
)  # fmt: skip
REQUEST_TIMEOUT = 120.0


@dataclass(frozen=True)
class Sample:
    """One request as the client measured it. Times in seconds; `started` is UNIX time; `ttft` None without a first token."""

    started: float
    revision: str
    status: int
    ttft: float | None
    e2e: float
    tokens: int
    finish: str | None
    error: str = ""

    @property
    def truncated(self) -> bool:
        """Whether the stream began and ended without a finish_reason: a client would notice the cut."""
        return self.status == 200 and self.finish is None


async def ask(session: aiohttp.ClientSession, url: str, prompt: str, max_tokens: int) -> Sample:
    """One streamed chat completion."""
    body = {
        "model": "smollm2",
        "stream": True,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": prompt}],
    }
    started, clock = time.time(), time.monotonic()
    ttft, tokens, finish, status, revision, error = None, 0, None, 0, "", ""
    try:
        async with session.post(f"{url}/chat/completions", json=body) as response:
            status = response.status
            revision = response.headers.get(REVISION_HEADER, "")
            if status != 200:
                error = (await response.text())[:200]
            else:
                async for line in response.content:
                    if not line.startswith(b"data: {"):
                        continue
                    event = json.loads(line[6:])
                    for choice in event.get("choices", ()):
                        if choice["delta"].get("content"):
                            tokens += 1
                            ttft = ttft if ttft is not None else time.monotonic() - clock
                        finish = choice.get("finish_reason") or finish
    except (aiohttp.ClientError, TimeoutError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    return Sample(started, revision, status, ttft, time.monotonic() - clock, tokens, finish, error)


class Load:
    """Requests at `rate` per second until stopped. `samples` grows in order of completion."""

    def __init__(self, url: str, *, seed: int = 7) -> None:
        self.url = url
        self.rate = 0.0
        self.max_tokens = 8
        self.samples: list[Sample] = []
        self._random = random.Random(seed)  # noqa: S311 - arrivals, not secrets
        self._open: set[asyncio.Task[Sample]] = set()
        self._pump: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Load:
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT))
        self._pump = asyncio.create_task(self._arrivals())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._pump:
            self._pump.cancel()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        if self._session:
            await self._session.close()

    @property
    def in_flight(self) -> int:
        return len(self._open)

    async def drain(self, timeout: float = REQUEST_TIMEOUT) -> None:
        """Stop sending and wait for the answers that are still out."""
        self.rate = 0.0
        if self._open:
            await asyncio.wait(set(self._open), timeout=timeout)

    def since(self, start: float, end: float = math.inf) -> list[Sample]:
        return [sample for sample in self.samples if start <= sample.started < end]

    def prompt(self) -> str:
        topic, number = self._random.choice(TOPICS), self._random.randrange(10**6)
        return f"Note {number}. Say something short and friendly about {topic}."

    async def _arrivals(self) -> None:
        while True:
            if self.rate <= 0:
                await asyncio.sleep(0.05)
                continue
            await asyncio.sleep(self._random.expovariate(self.rate))
            if self.rate <= 0:  # drained meanwhile
                continue
            task = asyncio.create_task(self.one())
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def one(self, max_tokens: int | None = None) -> Sample:
        """Send one request now, whatever the rate, and record its answer."""
        if self._session is None:
            raise RuntimeError("Load is used outside its `async with` block")
        sample = await ask(self._session, self.url, self.prompt(), max_tokens or self.max_tokens)
        self.samples.append(sample)
        return sample


def quantile(values: Iterable[float], q: float) -> float:
    """The q-quantile (nearest rank) of `values`; NaN when there is none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(q * len(ordered)) - 1)] if ordered else math.nan


def binomial_interval(trials: int, share: float, confidence: float = 0.99) -> tuple[int, int]:
    """The central interval of a Binomial(trials, share) that holds at least `confidence` of its mass."""
    tail, total, low, high = (1 - confidence) / 2, 0.0, 0, trials
    found_low = False
    for k in range(trials + 1):
        total += math.comb(trials, k) * share**k * (1 - share) ** (trials - k)
        if not found_low and total > tail:
            low, found_low = k, True
        if total >= 1 - tail:
            high = k
            break
    return low, high
