"""Publishes the events of the prefix cache over ZeroMQ as vLLM does: PUB frames (topic, sequence number, batch), ROUTER for replays.

A thread of its own encodes and sends. What it has not sent yet waits in a bounded queue, and a step never waits for it. The protocol of a
replay: a request is an empty frame and the first wanted sequence number. Each batch that is still kept comes back as (empty, sequence
number, batch), and the last answer has the number -1 and no batch. Sequence numbers are 8 bytes, big-endian.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque

import msgspec
import zmq

from pagefleet_contract.addresses import EVERY, every_address
from pagefleet_engine.core.kv_events import Change, Cleared, EventBatch, events_of
from pagefleet_engine.core.requests import KVEventsConfig
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.runner.common.recovery import report

END = (-1).to_bytes(8, "big", signed=True)
LINGER_MS = 500  # for what is sent last
CLOSE_SECONDS = 5.0


class EventPublisher:
    """`batches` counts those that got a sequence number, `dropped` those of them that nobody gets, because the queue was full.

    Raises ModelError when an endpoint cannot be used. `publish` and `close` are for one thread.
    """

    def __init__(self, config: KVEventsConfig) -> None:
        self._topic, self._most = config.topic.encode(), config.max_queue_size
        self._queue: deque[tuple[int, float, list[Change]]] = deque()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._encoder = msgspec.msgpack.Encoder()
        self.batches = self.dropped = 0
        self._lost = self._closing = False
        self._context = zmq.Context()
        self._publications = self._opened(zmq.PUB, config.endpoint, config.hwm, "endpoint")
        self._replays: zmq.Socket[bytes] | None = None
        if config.replay_endpoint is not None:
            # A replay is sent as a whole: what goes beyond the limit would be dropped.
            self._replays = self._opened(
                zmq.ROUTER, config.replay_endpoint, config.buffer_steps + 1, "replay_endpoint", binds=True
            )
        self._wakes, self._wake = socket.socketpair()
        self._wakes.setblocking(False)
        self._wake.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self, changes: list[Change]) -> None:
        """Queue the changes of one step as one batch. Never waits.

        A batch that has no room leaves a gap in the sequence numbers. The next one begins with AllBlocksCleared: a reader that could
        not know which blocks have left forgets them all.
        """
        if not changes:
            return
        number, self.batches = self.batches, self.batches + 1
        if len(self._queue) >= self._most:
            self.dropped, self._lost = self.dropped + 1, True
            return
        if self._lost:
            changes, self._lost = [Cleared(), *changes], False
        self._queue.append((number, time.time(), changes))
        self._stir()

    def close(self) -> None:
        """Send what is queued, then end."""
        self._closing = True
        self._stir()
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._wakes.close()
            self._wake.close()

    def _opened(self, kind: int, endpoint: str, limit: int, key: str, *, binds: bool = False) -> zmq.Socket[bytes]:
        """Open a socket as vLLM does: it binds to an endpoint with * or :: and to ipc and inproc, and connects to others."""
        made: zmq.Socket[bytes] = self._context.socket(kind)
        made.linger = LINGER_MS
        made.set_hwm(limit)
        binds = binds or any(part in endpoint for part in ("*", EVERY)) or endpoint.startswith(("ipc://", "inproc://"))
        try:
            # With IPv6 * stands for the addresses of both families.
            made.ipv6 = EVERY in endpoint or every_address() == EVERY
            (made.bind if binds else made.connect)(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ModelError(
                "spec.engine.args", f"--kv-events-config: {key} {endpoint!r} cannot be used: {error}"
            ) from error
        return made

    def _stir(self) -> None:
        with contextlib.suppress(BlockingIOError):  # enough bytes wait there already
            self._wake.send(b"\0")

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wakes, zmq.POLLIN)
        if self._replays is not None:
            poller.register(self._replays, zmq.POLLIN)
        while not (self._closing and not self._queue):
            poller.poll()
            with contextlib.suppress(BlockingIOError):
                self._wakes.recv(4096)
            try:
                self._send_queued()
                self._answer_replays()
            except Exception as error:  # of one batch or one reader: the others get theirs
                report("KV events could not be sent", error)
        self._context.destroy(linger=LINGER_MS)

    def _send_queued(self) -> None:
        while self._queue:
            number, at, changes = self._queue.popleft()
            sequence = number.to_bytes(8, "big")
            payload = self._encoder.encode(EventBatch(at, events_of(changes), 0))
            self._publications.send_multipart((self._topic, sequence, payload))
            self._kept.append((sequence, payload))

    def _answer_replays(self) -> None:
        while self._replays is not None and self._replays.poll(0):
            frames = self._replays.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                report("a request for a replay of KV events is not an empty frame and 8 bytes", level="warning")
                continue
            reader, _, first = frames
            for sequence, payload in self._kept:
                if sequence >= first:
                    self._replays.send_multipart((reader, b"", sequence, payload))
            self._replays.send_multipart((reader, b"", END, b""))
