"""Users of one service: short requests at a steady rate, however late the answers are (open loop), and long streams."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field

import aiohttp

TOKENS_A_SECOND = 10  # of a stub engine


@dataclass
class Answers:
    """Counts of answers. `failures` is by cause; a 429 counts as `shed`, not as a failure."""

    answered: int = 0
    shed: int = 0
    truncated: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def failed(self) -> int:
        return sum(self.failures.values())


@dataclass(frozen=True)
class Answer:
    """`revision` "" without an answer; `arrived` at its engine by the machine's monotonic clock."""

    revision: str
    arrived: float


class Users:
    """`last`: for each revision, the time at which the latest request that it answered arrived at its engine."""

    def __init__(self, http: aiohttp.ClientSession, url: str, answers: Answers, rate: float) -> None:
        self._http, self._url, self._answers = http, f"{url}/v1/completions", answers
        self.rate = rate  # of `run`, requests per second
        self._open: set[asyncio.Task[Answer]] = set()
        self.last: dict[str, float] = {}

    async def run(self, tokens: int = 1) -> None:
        """`rate` requests per second, until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            self.ask(tokens)
            due += 1 / self.rate
            await asyncio.sleep(max(0.0, due - loop.time()))

    def ask(self, tokens: int, begun: asyncio.Future[str] | None = None) -> asyncio.Task[Answer]:
        """A request; `begun` gets the revision when the head of the answer has arrived."""
        task = asyncio.create_task(self._ask(tokens, begun))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        return task

    async def finished(self) -> None:
        """Wait until every open request has ended."""
        while self._open:
            await asyncio.gather(*self._open)

    async def _ask(self, tokens: int, begun: asyncio.Future[str] | None) -> Answer:
        body = json.dumps({"model": "m", "prompt": "hi", "max_tokens": tokens, "stream": True})
        revision, arrived, headed = "", 0.0, False
        try:
            async with self._http.post(self._url, data=body) as response:
                headed = response.status == 200
                revision = response.headers.get("x-pagefleet-revision", "") if headed else ""
                arrived = float(response.headers.get("x-arrived", "0"))
                self.last[revision] = max(self.last.get(revision, 0.0), arrived)
                if begun is not None and not begun.done():
                    begun.set_result(revision)
                text = await response.read()
                if headed and b"data: [DONE]" not in text:
                    self._answers.truncated += 1
                elif headed:
                    self._answers.answered += 1
                elif response.status == 429:
                    self._answers.shed += 1
                else:
                    self._answers.failures[f"{response.status} {text[:80].decode(errors='replace')}"] += 1
        except (aiohttp.ClientError, TimeoutError) as error:
            if headed:
                self._answers.truncated += 1
            else:
                self._answers.failures[type(error).__name__] += 1
        if begun is not None and not begun.done():
            begun.set_result("")
        return Answer(revision, arrived)


async def streams(users: Users, revision: str, count: int, tokens: int) -> None:
    """Open streams of `tokens` until `count` of them are answered by `revision`. Raises TimeoutError."""
    loop, answered = asyncio.get_running_loop(), 0
    async with asyncio.timeout(60):
        while answered < count:
            begun: list[asyncio.Future[str]] = [loop.create_future() for _ in range(count)]
            for future in begun:
                users.ask(tokens, future)
            answered += sum(one == revision for one in await asyncio.gather(*begun))
