"""The API process's end of the engine: starts the engine process, sends requests, hands out results.

The two speak length-prefixed msgpack over a socket pair (core.messages). Never imports torch, never restarts an engine
that ended: the pod's own restart does that.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator

import msgspec

from pagefleet_engine.api.logs import log
from pagefleet_engine.api.metrics import Metrics
from pagefleet_engine.core.messages import Abort, Add, Failed, Frames, Ready, Step, frame, from_engine
from pagefleet_engine.core.requests import EngineConfig, EngineRequest, EngineStats, Finish, TokenOutput

READ_BYTES = 1 << 20
STALL_SECONDS = 60.0


class EngineDied(Exception):
    """A request cannot be finished: its engine ended, or gave it up. `code` is the API's name for why."""

    def __init__(self, message: str, code: str = "engine_died") -> None:
        super().__init__(message)
        self.code = code


class EngineClient:
    """One engine process. `failed` holds why it could not start; `ended` is set when it is gone."""

    def __init__(self, config: EngineConfig, metrics: Metrics) -> None:
        self._config, self._metrics = config, metrics
        self._queues: dict[str, asyncio.Queue[TokenOutput | None]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._stopping = False
        self._heard = time.monotonic()
        self.ready: Ready | None = None
        self.failed: Failed | None = None
        self.ended = asyncio.Event()
        self.stats: EngineStats | None = None

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "pagefleet_engine.runner.process", str(theirs.fileno())]
        self._process = subprocess.Popen(  # noqa: ASYNC220 - a fork and exec of our own interpreter, once
            [*command, msgspec.json.encode(self._config).decode()], pass_fds=[theirs.fileno()]
        )
        theirs.close()
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._listener = asyncio.create_task(self._listen(reader))

    @property
    def healthy(self) -> bool:
        """Whether the engine has loaded, lives, and answers when it has work."""
        busy = bool(self._queues)
        fresh = not busy or time.monotonic() - self._heard < STALL_SECONDS
        return self.ready is not None and not self.ended.is_set() and fresh

    @property
    def waiting(self) -> int:
        """Requests queued: those the engine reported, or those sent since, whichever is more."""
        running = self.stats.running if self.stats else 0
        return max(
            self.stats.waiting if self.stats else 0,
            len(self._queues) - max(running, self._config.max_num_seqs),
        )

    @property
    def open(self) -> int:
        return len(self._queues)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenOutput]:
        """Outputs of one request until it is finished. Leaving early aborts it. Raises EngineDied."""
        if self.ended.is_set():
            raise self._death()
        queue: asyncio.Queue[TokenOutput | None] = asyncio.Queue()
        self._queues[request.request_id] = queue
        if len(self._queues) == 1:
            self._heard = time.monotonic()
        finished = False
        try:
            self._send(Add(request))
            while not finished:
                output = await queue.get()
                finished = output is None or output.finish_reason is not None
                if output is None:
                    raise self._death()
                if output.finish_reason == Finish.ABORT:
                    raise EngineDied("the engine gave this request up", "engine_aborted")
                yield output
        finally:
            del self._queues[request.request_id]
            if not finished:
                self._send(Abort(request.request_id))

    async def stop(self) -> None:
        """Close the socket: the engine process ends by itself, or is killed after five seconds.

        Requests still open end with EngineDied.
        """
        self._stopping = not self.ended.is_set()
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            if self.ready is None:
                self._process.kill()  # still loading: it would not see the closed socket before the end of that
            try:
                await asyncio.to_thread(self._process.wait, 5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                await asyncio.to_thread(self._process.wait)
        if self._listener is not None:
            await asyncio.gather(self._listener, return_exceptions=True)

    def _death(self) -> EngineDied:
        if self._stopping:
            return EngineDied("this server shut down before the answer was complete", "draining")
        return EngineDied("the engine process ended before the answer was complete")

    def _send(self, message: Add | Abort) -> None:
        if self._writer is not None and not self.ended.is_set():
            self._writer.write(frame(message))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        frames = Frames()
        try:
            while data := await reader.read(READ_BYTES):
                self._heard = time.monotonic()
                for body in frames.feed(data):
                    self._take(from_engine.decode(body))
        except (ConnectionError, ValueError, msgspec.MsgspecError) as error:
            log("error", f"what the engine process says cannot be read: {error}")
        finally:
            self.ended.set()
            for queue in self._queues.values():
                queue.put_nowait(None)

    def _take(self, message: Ready | Failed | Step) -> None:
        match message:
            case Ready():
                self.ready, self.stats = message, message.stats
                self._metrics.levels(message.stats)
            case Failed():
                self.failed = message
            case Step(outputs, stats, seconds):
                self.stats = stats
                self._metrics.levels(stats)
                self._metrics.step.observe(seconds)
                for output in outputs:
                    queue = self._queues.get(output.request_id)
                    if queue is not None:
                        queue.put_nowait(output)
