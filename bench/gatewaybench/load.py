"""The load generator, a process of its own: open loop (Poisson arrivals, whatever the answers do) or closed loop.

    python -m bench.gatewaybench.load '{"port": 8080, "path": "/v1/completions", "rate": 500, "seconds": 10}'

Prints one JSON object. Times are seconds from the moment a request was due, so a generator that falls behind counts
against the measured system, and `late` states by how much. Keep-alive connections, as many as are needed at once.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import cast

import httptools
import uvloop
from bench.gatewaybench.trace import trace


@dataclass(frozen=True)
class Plan:
    port: int
    path: str
    seconds: float
    rate: float = 0.0  # requests a second; 0: closed loop
    clients: int = 64  # of the closed loop
    warm: float = 1.0  # seconds at the start that are not counted
    tokens: int = 1  # of each answer
    host: str = "127.0.0.1"
    bodies: int = 400  # different ones, of bench/gatewaybench/trace.py
    small: bool = False  # bodies of a few bytes instead
    seed: int = 1


@dataclass
class Counts:
    ttft: array[float] = field(default_factory=lambda: array("d"))
    late: array[float] = field(default_factory=lambda: array("d"))
    answered: int = 0
    failed: int = 0
    statuses: dict[str, int] = field(default_factory=dict)

    def fail(self, what: str) -> None:
        self.failed += 1
        self.statuses[what] = self.statuses.get(what, 0) + 1


class Client(asyncio.Protocol):
    """One connection: one request at a time."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._due, self._begun, self._end = 0.0, False, b""
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self.busy:
            self.busy = False
            self._load.results.fail("cut off" if self._begun else "lost")
            self._load.over(self, reusable=False)
        else:
            self._load.forget(self)

    def ask(self, due: float, data: bytes) -> None:
        self._due, self._begun, self._end, self.busy = due, False, b"", True
        if self._transport is None:
            self.connection_lost(None)
            return
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        if not self._begun and self._load.counts(self._due):
            self._load.results.ttft.append(self._load.clock() - self._due)
        self._begun = True
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._end = (self._end + body)[-2048:]

    def on_message_complete(self) -> None:
        self.busy = False
        status = self._parser.get_status_code()
        if status == 200 and b"[DONE]" not in self._end:
            self._load.results.fail("ended with an error" if b'"error"' in self._end else "ended short")
        elif status == 200:
            self._load.results.answered += self._load.counts(self._due)
        else:
            self._load.results.fail(f"{status} {_code(self._end)}".rstrip())
        reusable = self._parser.should_keep_alive()
        # The parser continues with the next answer by itself.
        self._load.over(self, reusable)


class Load:
    def __init__(self, plan: Plan, loop: asyncio.AbstractEventLoop) -> None:
        # Not the loop's clock: uvloop counts whole milliseconds.
        self.plan, self.results, self.clock, self._loop = plan, Counts(), time.perf_counter, loop
        self._idle: deque[Client] = deque()
        self._open = 0
        self._done = asyncio.Event()
        self._requests = requests(plan)
        self._start = self._end = 0.0

    def counts(self, due: float) -> bool:
        return due >= self._start + self.plan.warm

    async def run(self) -> dict[str, object]:
        plan, rng = self.plan, random.Random(self.plan.seed)
        self._start = self.clock()
        self._end = self._start + plan.warm + plan.seconds
        if not plan.rate:
            for _ in range(plan.clients):
                self._ask(self.clock())
            await asyncio.sleep(plan.warm + plan.seconds)
        due = self._start
        while plan.rate and due < self._end:
            due += rng.expovariate(plan.rate)
            if due > self.clock():
                await asyncio.sleep(due - self.clock())
            self._ask(due)
            if self.counts(due):
                self.results.late.append(self.clock() - due)
        for _ in range(60):  # three seconds for requests that are still open
            if not self._open:
                break
            await asyncio.sleep(0.05)
        unanswered = self._open
        results = self.results
        return {
            "plan": asdict(plan),
            "answered": results.answered,
            "failed": results.failed,
            "statuses": results.statuses,
            "unanswered": unanswered,
            "perSecond": results.answered / plan.seconds,
            "ttft": quantiles(results.ttft),
            "late": quantiles(results.late),
        }

    def over(self, client: Client, reusable: bool) -> None:
        self._open -= 1
        if reusable:
            self._idle.append(client)
        if not self.plan.rate and self.clock() < self._end:
            self._loop.call_soon(self._ask, self.clock())

    def forget(self, client: Client) -> None:
        if client in self._idle:
            self._idle.remove(client)

    def _ask(self, due: float) -> None:
        self._open += 1
        data = next(self._requests)
        if self._idle:
            self._idle.pop().ask(due, data)
        else:
            task = self._loop.create_task(self._connect(due, data))
            task.add_done_callback(lambda done: done.exception() and self._unconnected())

    async def _connect(self, due: float, data: bytes) -> None:
        _, client = await self._loop.create_connection(lambda: Client(self), self.plan.host, self.plan.port)
        client.ask(due, data)

    def _unconnected(self) -> None:
        self.results.fail("no connection")
        self._open -= 1


def _code(body: bytes) -> str:
    """Return the code of an error in OpenAI's shape, "" for another answer."""
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, LookupError, TypeError):
        return ""


def requests(plan: Plan) -> Iterator[bytes]:
    """Yield whole HTTP requests, for ever."""
    if plan.small:
        # Different ones: the gateway tries no body again of which an engine has just died.
        texts = (f"hi {number}" for number in range(plan.bodies))
        bodies = [json.dumps({"model": "m", "prompt": text, "max_tokens": 1}).encode() for text in texts]
    else:
        bodies = [_completion(arrival.body) for arrival in trace(plan.bodies, 100.0, plan.seed)]
    whole = []
    for body in bodies:
        asked = json.loads(body) | {"max_tokens": plan.tokens, "stream": True}
        data = json.dumps(asked).encode()
        head = (
            f"POST {plan.path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
        )
        whole.append(head.encode() + b"\r\n\r\n" + data)
    while True:
        yield from whole


def _completion(chat: bytes) -> bytes:
    """Return a chat request as one for completions, which every system has."""
    asked = json.loads(chat)
    prompt = "\n".join(message["content"] for message in asked.pop("messages"))
    return json.dumps(asked | {"prompt": prompt}).encode()


def quantiles(values: array[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    at = {name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] for name, share in SHARES.items()}
    return {"count": len(ordered), **at}


SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


async def main(plan: Plan) -> dict[str, object]:
    return await Load(plan, asyncio.get_running_loop()).run()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(main(Plan(**json.loads(sys.argv[1]))))))
