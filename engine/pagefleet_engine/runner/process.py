"""The engine's own process: `python -m pagefleet_engine.runner.process FD CONFIG`. Owns torch; knows no HTTP.

Reads requests from the socket FD, steps while there is work, blocks on the socket when idle. Ends when the API
process closes its end. Exits 78 after a start-up failure that it has reported to the API process.
"""

from __future__ import annotations

import select
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from pagefleet_engine.core.messages import (
    Abort,
    Add,
    Command,
    Done,
    EngineStep,
    Failed,
    Frames,
    LoadAdapter,
    Pin,
    Ready,
    Sleep,
    UnloadAdapter,
    Unpin,
    Wake,
    frame,
    to_engine,
)
from pagefleet_engine.core.requests import EngineConfig, EngineStats, Finish, TokenOutput
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.runner.common import machine
from pagefleet_engine.runner.common.recovery import report
from pagefleet_engine.runner.start import start

if TYPE_CHECKING:
    from pagefleet_engine.runner.common.event_publisher import EventPublisher
    from pagefleet_engine.runner.start import AnyEngine

EXIT_CONFIGURATION = 78
READ_BYTES = 1 << 20
TRIM_SECONDS = 60.0
TAKE_SECONDS = 0.02  # of messages between two steps: a grammar may take half a second to compile
PLAIN = ("floats", "gguf")  # descriptions of weights that the log need not name


def serve(connection: socket.socket, config: EngineConfig) -> int:
    """Run until the peer closes. Returns the exit status."""
    publisher = None
    try:
        publisher = _publisher(config)
        return _serve(connection, config, start(config), publisher)
    except ModelError as error:
        connection.sendall(frame(Failed(error.field, error.message)))
        return EXIT_CONFIGURATION
    finally:
        if publisher is not None:
            publisher.close()


def _serve(connection: socket.socket, config: EngineConfig, engine: AnyEngine, publisher: EventPublisher | None) -> int:
    if (stored := engine.description["weights"]) not in PLAIN:
        report(f"the checkpoint's quantised weights: {stored}", level="info")
    if engine.description["model_impl"] == "transformers":
        kind = engine.description["architecture"]
        said = "transformers' own code computes it over the engine's KV pages, slower than a family of the engine's"
        report(f"there is no family for model_type {kind!r}, or --model-impl asks for it: {said}", level="info")
    stats = _published(engine, publisher)
    _report_pinnable(stats, config, engine.max_model_len)
    capacity = stats.pages_total * config.page_size
    ready = Ready(engine.max_model_len, capacity, engine.hidden_size, engine.description, stats)
    connection.sendall(frame(ready))
    frames, received, trimmed = Frames(), 0, time.monotonic()
    bodies: deque[bytes] = deque()
    while True:
        refused: list[TokenOutput] = []
        until: float | None = None  # messages are taken; None: there was none since the last step
        idle = None if (end := engine.next_end()) is None else max(0.0, end - time.monotonic())
        while bodies or select.select([connection], [], [], 0 if engine.has_work() or until else idle)[0]:
            if not bodies:
                data = connection.recv(READ_BYTES)
                if not data:
                    return 0
                bodies.extend(frames.feed(data))
                continue
            if until is None:
                until = time.monotonic() + TAKE_SECONDS
            received += 1
            refused += _take(engine, bodies.popleft(), connection)
            if engine.has_work() and time.monotonic() > until:
                break
        began = time.monotonic()
        if began >= trimmed + TRIM_SECONDS:  # one to two milliseconds
            machine.return_freed_memory()
            trimmed = began
        outputs = refused + engine.step(began)
        stats, seconds = _published(engine, publisher), time.monotonic() - began
        connection.sendall(frame(EngineStep(outputs, stats, seconds, *engine.computed, received)))


def _publisher(config: EngineConfig) -> EventPublisher | None:
    """Return the publisher of the prefix cache's events, None where nobody wants them. Raises ModelError."""
    events = config.kv_events_config
    if events is None or not events.publishes:
        return None
    from pagefleet_engine.runner.common.event_publisher import EventPublisher  # imports ZeroMQ

    return EventPublisher(events)


def _published(engine: AnyEngine, publisher: EventPublisher | None) -> EngineStats:
    """Publish the changes of the prefix cache. Return the engine's load with the counts of that."""
    if publisher is None:
        return engine.stats()
    publisher.publish(engine.take_changes())
    return replace(engine.stats(), kv_event_batches=publisher.batches, kv_event_batches_dropped=publisher.dropped)


def _report_pinnable(stats: EngineStats, config: EngineConfig, max_model_len: int) -> None:
    """Report that fewer pages can be pinned than the flag says."""
    asked = int(stats.pages_total * config.max_pinned_pages_share)
    if config.prefix_caching and stats.pages_pinnable < asked:
        left = f"{stats.pages_pinnable} and not {asked} of {stats.pages_total} pages can be pinned"
        room = f"so that a request of {max_model_len} tokens has room beside them"
        report(f"--max-pinned-pages-share: {left}, {room}", level="info")


def _take(engine: AnyEngine, body: bytes, connection: socket.socket) -> list[TokenOutput]:
    match to_engine.decode(body):
        case Add(request):
            try:
                engine.add(request)
            except (ValueError, RuntimeError):
                # The API process checks the same limits first: only a defect there leads here, and ends one request.
                return [TokenOutput(request.request_id, (), Finish.ABORT, len(request.prompt_token_ids), 0)]
            except Exception as error:
                report("a request cannot be taken and is ended", error, request.request_id)
                return [TokenOutput(request.request_id, (), Finish.ERROR, len(request.prompt_token_ids), 0)]
        case Abort(request_id, index):
            engine.abort(request_id, index)
        case command:
            connection.sendall(frame(Done(command.id, _carry_out(engine, command))))
    return []


def _carry_out(engine: AnyEngine, command: Command) -> str | None:
    """Carry out a command. Return why it failed, None when it did not."""
    try:
        match command:
            case LoadAdapter(_, name, path):
                engine.load_adapter(name, path)
            case UnloadAdapter(_, name):
                engine.unload_adapter(name)
            case Sleep(_, level):
                engine.sleep(level)
            case Wake():
                engine.wake()
            case Pin():
                engine.pin(command)
            case Unpin(_, name):
                engine.unpin(name)
    except (ValueError, RuntimeError, ModelError) as error:
        return str(error)
    return None


def main() -> int:
    # The API process decides when to end: it drains on SIGTERM and then closes the socket.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    try:
        return serve(connection, msgspec.json.decode(sys.argv[2], type=EngineConfig))
    except (BrokenPipeError, ConnectionResetError):
        return 0


if __name__ == "__main__":
    sys.exit(main())
