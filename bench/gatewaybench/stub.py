"""Engines without a model: HTTP servers that answer and stream as a pagefleet-engine does, several in one process.

    python -m bench.gatewaybench.stub --ports 9101,9102 --first-ms 0 --headers late

Raw protocols on uvloop: the load generator and the measured system need the processor more. `max_tokens` is how many
tokens an answer has, one event each, all at once or one each `--interval-ms`; the trailer states it, as our engine's does. Engines that stream for
long are wire/'s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import signal
from functools import partial
from typing import cast

import httptools
import uvloop

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    b"trailer: x-pagefleet-output-tokens\r\n\r\n"
)
# When the headers go: with the first token (late), at once (first), at once with an event that names the role, or with comments
# until the token.
HEADERS = {
    "late": b"",
    "first": b"",
    "role": b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n',
    "pings": b": ping\n\n",
}
EVENT = (
    b'data: {"id":"c","object":"text_completion","created":0,"model":"m","choices":[{"index":0,"text":" token"}]}\n\n'
)
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\nx-pagefleet-output-tokens: %d\r\n\r\n"
GAUGES = b"pagefleet_num_requests_running %d\npagefleet_num_requests_waiting 0\npagefleet_kv_cache_usage_perc 0.1\n"
MODELS = json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}).encode()
_TOKENS = re.compile(rb'"max_tokens": ?(\d+)')


class Engine:
    """One port's streams, stepped together, as a batch's are."""

    def __init__(self, first: float, interval: float = 0.0, headers: str = "late") -> None:
        self.first, self.interval, self.headers = first, interval, headers
        self.streams: dict[Connection, list[int]] = {}  # connection -> [tokens sent, tokens requested]

    def step(self) -> None:
        for connection, progress in list(self.streams.items()):
            connection.send(CHUNK)
            progress[0] += 1
            if progress[0] >= progress[1]:
                del self.streams[connection]
                connection.send(DONE % progress[1])


class Connection(asyncio.Protocol):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url, self._body = b"", b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._engine.streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            # A router that tries HTTP/2 first: an engine speaks HTTP/1.1.
            if self._transport is not None:
                self._transport.close()

    def on_message_begin(self) -> None:
        self._url, self._body = b"", b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._parser.get_method() != b"POST":
            body = GAUGES % len(self._engine.streams) if self._url == b"/metrics" else MODELS
            kind = b"text/plain" if self._url == b"/metrics" else b"application/json"
            self.send(b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (kind, len(body), body))
            return
        requested = _TOKENS.search(self._body)
        tokens = int(requested[1]) if requested else 1
        if self._engine.headers != "late":
            before = HEADERS[self._engine.headers]
            self.send(HEAD + (b"%x\r\n%s\r\n" % (len(before), before) if before else b""))
        if self._engine.first:
            first = self._engine.first * random.uniform(0.5, 1.5)
            asyncio.get_running_loop().call_later(first, self._begin, tokens)
        else:
            self._begin(tokens)

    def _begin(self, tokens: int) -> None:
        head = HEAD if self._engine.headers == "late" else b""
        if self._engine.interval and tokens > 1:
            self.send(head + CHUNK)
            self._engine.streams[self] = [1, tokens]
        else:
            self.send(head + CHUNK * tokens + DONE % tokens)

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def main(places: list[tuple[str, int]], first: float, headers: str = "late", interval: float = 0.0) -> None:
    loop, engines = asyncio.get_running_loop(), list[Engine]()
    for host, port in places:
        engines.append(Engine(first, interval, headers))
        await loop.create_server(partial(Connection, engines[-1]), host, port, backlog=1024)

    def step() -> None:
        loop.call_later(interval, step)
        for engine in engines:
            engine.step()

    if interval:
        step()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    print("serving", flush=True)
    await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ports", required=True)
    parser.add_argument("--hosts", default="127.0.0.1")
    parser.add_argument("--first-ms", type=float, default=0.0, help="the mean; half of it to one and a half times")
    parser.add_argument("--headers", choices=HEADERS, default="late")
    parser.add_argument("--interval-ms", type=float, default=0.0, help="between two tokens of a stream; 0: all at once")
    options = parser.parse_args()
    places = [(host, int(port)) for host in options.hosts.split(",") for port in options.ports.split(",")]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(places, options.first_ms / 1000, options.headers, options.interval_ms / 1000))
