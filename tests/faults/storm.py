"""Sends Alertmanager's posts at a rate over connections that stay open, whatever the operator does meanwhile. A post that
was not answered 200 is sent again. Counts; judges nothing."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

CONNECTIONS = 64
AWAY_SECONDS = 0.2  # after a refused connection
Document = dict[str, Any]


@dataclass
class Storm:
    """One storm. `bodies` makes the next post: its JSON, and a coroutine to await once it was answered 200. `answers` by
    status; 0: the connection broke. Posts that are late are sent as soon as possible: a backlog comes all at once."""

    port: int
    token: str
    rate: float
    bodies: Callable[[], tuple[Document, Callable[[], Awaitable[None]] | None]]
    answers: Counter[int] = field(default_factory=Counter)
    _began: float = 0.0
    _next: int = 0

    async def run(self, over: asyncio.Event) -> None:
        """Send posts until the storm is `over`. Return when every post that was begun was answered 200."""
        self._began, self._next = time.monotonic(), 0
        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(self._client(over))

    async def _client(self, over: asyncio.Event) -> None:
        line = _Line(self.port, self.token)
        try:
            while not over.is_set():
                due = self._began + self._next / self.rate
                self._next += 1
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                document, answered = self.bodies()
                body = json.dumps(document).encode()
                while (status := await line.post(body)) != 200:
                    self.answers[status] += 1
                    await asyncio.sleep(AWAY_SECONDS)
                self.answers[200] += 1
                if answered is not None:
                    await answered()
        finally:
            line.close()


class _Line:
    """One connection, opened again when it broke."""

    def __init__(self, port: int, token: str) -> None:
        self._port, self._token = port, token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, body: bytes) -> int:
        """Post once. Return the answer's status; 0 when none came."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(
                b"POST /alerts HTTP/1.1\r\nHost: operator\r\nAuthorization: Bearer %s\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                % (self._token.encode(), len(body))
                + body
            )
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(text[15:]) for text in head.split(b"\r\n") if text.lower().startswith(b"content-length:"))
            await reader.readexactly(length)
            return int(head.split(b" ", 2)[1])
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return 0

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


@dataclass
class Subjects:
    """The subjects of the alerts: `now` the canary under judgement, "" while there is none; `before` other revisions.
    The alerts are the same few in any order, firing and resolved, and some on which the operator must not act."""

    namespace: str
    service: str
    chance: random.Random
    now: str = ""
    before: list[str] = field(default_factory=lambda: ["0123abcd"])

    def alerts(self) -> list[Document]:
        return [self._alert() for _ in range(self.chance.randint(1, 3))]

    def _alert(self) -> Document:
        kind = self.chance.random()
        if kind < 0.6 and self.now:
            return self._of(self.now, self.chance.randrange(4))
        if kind < 0.75 and self.now:  # two of the four alerts are resolved, sooner or later
            return self._of(self.now, self.chance.randrange(2, 4), "resolved")
        if kind < 0.9:
            return self._of(self.chance.choice(self.before), self.chance.randrange(2))
        other = self.chance.choice(({"severity": "info"}, {"service": "another"}, {"namespace": "elsewhere"}))
        return self._of(self.now or self.before[-1], 0, **other)

    def _of(self, revision: str, number: int, status: str = "firing", **more: str) -> Document:
        labels = {"alertname": f"Bad{number}", "severity": "page", "namespace": self.namespace, "service": self.service,
                  "revision": revision, **more}  # fmt: skip
        fingerprint = "-".join((revision, str(number), *more.values()))  # Alertmanager's is a hash of the labels
        return {"status": status, "labels": labels, "startsAt": "2026-01-01T00:00:00Z", "fingerprint": fingerprint}
