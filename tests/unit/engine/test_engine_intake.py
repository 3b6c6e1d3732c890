"""Protects running answers from requests that take long to be taken, because their grammars are compiled: steps go on between them."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

from pagefleet_engine.core.messages import Add, EngineStep, Frames, frame, from_engine
from pagefleet_engine.core.requests import EngineConfig, EngineRequest, EngineStats, SamplingParams
from pagefleet_engine.runner import process


class Slow:
    """An engine that takes 50 ms to take a request, and notes what it was asked to do."""

    max_model_len, hidden_size, computed = 64, 8, (0, 0)

    def __init__(self) -> None:
        self.done: list[str] = []
        self.description = {"weights": "floats", "model_impl": "pagefleet", "architecture": "x"}

    def stats(self) -> EngineStats:
        return EngineStats(0, 0, 10, 10, 0, 0, 0, 0, 0)

    def has_work(self) -> bool:
        return "add" in self.done and len(self.done) < 60

    def next_end(self) -> float | None:
        return None

    def add(self, request: EngineRequest) -> None:
        time.sleep(0.05)
        self.done.append("add")

    def step(self, now: float) -> list[Any]:
        self.done.append("step")
        return []


def test_steps_go_on_while_many_requests_come() -> None:
    engine, frames, received = Slow(), Frames(), 0
    ours, theirs = socket.socketpair()
    with ours, theirs:
        serving: tuple[Any, ...] = (theirs, EngineConfig("x", prefix_caching=False), engine, None)
        thread = threading.Thread(target=process._serve, args=serving)
        thread.start()
        adds = [Add(EngineRequest(str(number), (1,), SamplingParams(1), 0.0)) for number in range(20)]
        ours.sendall(b"".join(frame(one) for one in adds))
        while received < 20:
            for body in frames.feed(ours.recv(1 << 16)):
                message = from_engine.decode(body)
                received = message.received if isinstance(message, EngineStep) else received
        ours.shutdown(socket.SHUT_WR)  # not closed: a step may still be sent
        thread.join()
    runs = "".join("a" if one == "add" else "s" for one in engine.done).split("s")
    assert max(map(len, runs)) <= 2, engine.done
