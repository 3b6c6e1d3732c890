"""The API process's end of the engine: starts the engine process, sends requests, hands out results.

The two speak length-prefixed msgpack over a socket pair (core.messages). Never imports torch, never restarts an engine
that ended: the pod's own restart does that.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence

import msgspec

from pagefleet_contract.headers import ENGINE_DIED
from pagefleet_engine.api.base.logs import log
from pagefleet_engine.api.observability.metrics import Metrics
from pagefleet_engine.core.messages import (
    Abort,
    Add,
    Command,
    Done,
    EngineStep,
    Failed,
    Frames,
    FromEngine,
    Ready,
    ToEngine,
    Unpin,
    frame,
    from_engine,
)
from pagefleet_engine.core.requests import EngineConfig, EngineRequest, EngineStats, Finish, TokenOutput

RUNNER = "pagefleet_engine.runner.process"  # the engine process's module
READ_BYTES = 1 << 20
STALL_SECONDS = 60.0
# The engine ends late requests itself, between two steps. Past this time the API process no longer waits for it.
DEADLINE_GRACE = 0.5


class EngineDied(Exception):
    """A request cannot be finished: its engine ended, or gave it up. `code` is the API's name for the reason."""

    def __init__(self, message: str, code: str = ENGINE_DIED) -> None:
        super().__init__(message)
        self.code = code


class RequestFailed(Exception):
    """The engine could not compute a request. It has ended that one and goes on."""


class Open:
    """One request under way: which of its answers have not ended, and whether an output came yet."""

    def __init__(self, request: EngineRequest, queue: asyncio.Queue[TokenOutput | None]) -> None:
        self.queue, self.tokens, self.answers = queue, len(request.prompt_token_ids), request.n
        self.left = set(range(request.n))
        self.answered = False

    def take(self, output: TokenOutput) -> None:
        self.answered = True
        if output.finish_reason in (Finish.ABORT, Finish.ERROR):
            self.left.clear()
        elif output.finish_reason is not None:
            self.left.discard(output.index)


class EngineClient:
    """One engine process. `failed` holds why it could not start; `ended` is set when it is gone."""

    def __init__(self, config: EngineConfig, metrics: Metrics) -> None:
        self._config, self._metrics = config, metrics
        self._open: dict[str, Open] = {}
        self._commands: dict[int, asyncio.Future[str | None]] = {}
        self._numbers = itertools.count(1)
        self._writer: asyncio.StreamWriter | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._stopping = False
        self._last_message = time.monotonic()  # or when it was last asked while it owed nothing
        self._sent = self._answered = 0  # messages
        self.ready: Ready | None = None
        self.failed: Failed | None = None
        self.ended = asyncio.Event()
        self.stats: EngineStats | None = None

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", RUNNER, str(theirs.fileno())]
        self._process = subprocess.Popen(  # noqa: ASYNC220 - a fork and exec of our own interpreter, once
            [*command, msgspec.json.encode(self._config).decode()], pass_fds=[theirs.fileno()]
        )
        theirs.close()
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._listener = asyncio.create_task(self._listen(reader))

    @property
    def healthy(self) -> bool:
        """Whether the engine has loaded, lives, and answers when it has work: each answer is a forward pass."""
        return self.ready is not None and not self.ended.is_set() and not self.stalled

    @property
    def stalled(self) -> bool:
        """Whether the engine owes an answer and has sent nothing for long: it hangs, and only a restart helps.

        It answers every message, so it stays stalled also when all clients have given up. A command (loading an adapter,
        waking up) may take its time.
        """
        owes = self.ready is not None and not self._commands and (self._owes or bool(self._open))
        return owes and time.monotonic() - self._last_message > STALL_SECONDS

    @property
    def _owes(self) -> bool:
        """Whether no step has followed the last message to the engine."""
        return self._answered < self._sent

    def waiting_with(self, more: int) -> int:
        """Return the sequences queued if `more` came: those that the engine reported, or those sent since, whichever is more."""
        running, waiting = (self.stats.running, self.stats.waiting) if self.stats else (0, 0)
        seats = max(running, self._config.max_num_seqs)
        return max(waiting + more if waiting else 0, sum(one.answers for one in self._open.values()) + more - seats)

    @property
    def unanswered_tokens(self) -> int:
        """Return the prompt tokens of requests that have no output yet."""
        return sum(one.tokens for one in self._open.values() if not one.answered)

    @property
    def open(self) -> int:
        return len(self._open)

    async def generate(self, requests: Sequence[EngineRequest]) -> AsyncGenerator[list[TokenOutput]]:
        """Yield outputs of the requests, as many at a time as have arrived, until all requests have ended.

        Leaving early aborts those that have not. Raises EngineDied, RequestFailed.
        """
        if self.ended.is_set():
            raise self._death()
        queue: asyncio.Queue[TokenOutput | None] = asyncio.Queue()
        mine = {request.request_id: Open(request, queue) for request in requests}
        if not self._owes and not self._open:
            self._last_message = time.monotonic()
        self._open |= mine
        timer = self._at_deadline(requests, lambda: _expire(mine, queue))
        try:
            for request in requests:
                self._send(Add(request))
            while any(one.left for one in mine.values()):
                outputs = [await queue.get()]
                while not queue.empty():
                    outputs.append(queue.get_nowait())
                computed: list[TokenOutput] = []
                failure: EngineDied | RequestFailed | None = None
                for output in outputs:
                    failure = self._failure(output)
                    if output is not None:
                        mine[output.request_id].take(output)
                        if failure is None:
                            computed.append(output)
                    if failure is not None:
                        break
                if computed:  # also those before a failure are the client's
                    yield computed
                if failure is not None:
                    raise failure
        finally:
            if timer is not None:
                timer.cancel()
            for request_id, one in mine.items():
                del self._open[request_id]
                if one.left:
                    self._send(Abort(request_id))

    def _failure(self, output: TokenOutput | None) -> EngineDied | RequestFailed | None:
        """Return why a request ends without an answer; None for an output of an answer."""
        if output is None:
            return self._death()
        if output.finish_reason == Finish.ABORT:
            return EngineDied("the engine gave this request up", "engine_aborted")
        if output.finish_reason == Finish.ERROR:
            return RequestFailed(
                f"the engine could not compute this request ({output.request_id}) and has ended it; "
                "do not send it again unchanged"
            )
        return None

    def abort(self, request_id: str, index: int) -> None:
        """Abort one answer of an open request: its client needs no more of it."""
        one = self._open.get(request_id)
        if one is not None and index in one.left:
            one.left.discard(index)
            self._send(Abort(request_id, index))

    def unpin(self, name: str) -> None:
        """Forget a pin of the engine, known or not."""
        self._send(Unpin(next(self._numbers), name))

    async def command(self, make: Callable[[int], Command]) -> str | None:
        """Send a command, `make` given its number. Returns why it could not be carried out. Raises EngineDied."""
        if self.ended.is_set():
            raise self._death()
        number = next(self._numbers)
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._commands[number] = answer
        try:
            self._send(make(number))
            return await answer
        finally:
            del self._commands[number]

    async def stop(self) -> None:
        """Close the socket: the engine process ends by itself, or is killed after five seconds.

        Requests still open end with EngineDied.
        """
        self._stopping = not self.ended.is_set()
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            if self.ready is None:
                self._process.kill()  # still loading: it would not see the closed socket before it has loaded
            try:
                await asyncio.to_thread(self._process.wait, 5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                await asyncio.to_thread(self._process.wait)
        if self._listener is not None:
            await asyncio.gather(self._listener, return_exceptions=True)

    def _at_deadline(self, requests: Sequence[EngineRequest], work: Callable[[], None]) -> asyncio.TimerHandle | None:
        deadline = min((request.deadline for request in requests if request.deadline is not None), default=None)
        if deadline is None:
            return None
        return asyncio.get_running_loop().call_later(deadline - time.monotonic() + DEADLINE_GRACE, work)

    def _death(self) -> EngineDied:
        if self._stopping:
            return EngineDied("this server shut down before the answer was complete", "draining")
        return EngineDied("the engine process ended before the answer was complete")

    def _send(self, message: ToEngine) -> None:
        if self._writer is not None and not self.ended.is_set():
            if not self._owes and not self._open:
                self._last_message = time.monotonic()
            self._sent += 1
            self._writer.write(frame(message))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        frames = Frames()
        try:
            while data := await reader.read(READ_BYTES):
                self._last_message = time.monotonic()
                for body in frames.feed(data):
                    self._take(from_engine.decode(body))
        except (ConnectionError, ValueError, msgspec.MsgspecError) as error:
            log("error", f"what the engine process says cannot be read: {error}")
        finally:
            self.ended.set()
            for one in self._open.values():
                one.queue.put_nowait(None)
            for answer in self._commands.values():
                if not answer.done():
                    answer.set_exception(self._death())

    def _take(self, message: FromEngine) -> None:
        match message:
            case Ready():
                self.ready, self.stats = message, message.stats
                self._metrics.describe(message.description)
                self._metrics.load(message.stats)
            case Failed():
                self.failed = message
            case Done(number, error):
                answer = self._commands.get(number)
                if answer is not None and not answer.done():
                    answer.set_result(error)
            case EngineStep():
                self.stats, self._answered = message.stats, message.received
                self._metrics.load(message.stats)
                self._metrics.stepped(message)
                for output in message.outputs:
                    one = self._open.get(output.request_id)
                    if one is not None:
                        one.queue.put_nowait(output)


def _expire(mine: dict[str, Open], queue: asyncio.Queue[TokenOutput | None]) -> None:
    """Send the output that the engine sends at a deadline, when the engine is late with it."""
    for request_id, one in mine.items():
        for index in one.left:
            queue.put_nowait(TokenOutput(request_id, (), Finish.DEADLINE.value, one.tokens, 0, index=index))
