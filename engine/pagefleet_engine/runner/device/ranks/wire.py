"""What the scheduling rank tells the others, in this order on all of them: length-prefixed msgpack on a socket."""

from __future__ import annotations

import socket
from typing import Final

import msgspec
import numpy as np

from pagefleet_engine.core.messages import HEADER, Frames
from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.runner.device.steps.step import Drawing, Numbers, Step

READ_BYTES = 1 << 20


class Joining(msgspec.Struct, frozen=True):
    """How a worker begins: its rank of `size`, its kind of device and which of its machine's, and where the ranks meet."""

    engine: EngineConfig
    device: str
    rank: int
    size: int
    port: int
    local: int = 0
    host: str = "127.0.0.1"


class Compute(msgspec.Struct, tag=True, frozen=True):
    step: bytes


class Rest(msgspec.Struct, tag=True, frozen=True):
    level: int


class Rouse(msgspec.Struct, tag=True, frozen=True):
    pass


Order = Compute | Rest | Rouse
_encoder = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Order)


def frame(order: Order) -> bytes:
    body = _encoder.encode(order)
    return HEADER.pack(len(body)) + body


class Orders:
    """Orders as they come from a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._frames = connection, Frames()
        self._ready: list[bytes] = []

    def next(self) -> Order | None:
        """The next one, waiting for it; None at the socket's end."""
        while not self._ready:
            data = self._connection.recv(READ_BYTES)
            if not data:
                return None
            self._ready = self._frames.feed(data)
        order: Order = _decoder.decode(self._ready.pop(0))
        return order


_step_encoder = msgspec.msgpack.Encoder()
_step_decoder = msgspec.msgpack.Decoder(tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes,
                                         bytes, bytes, bool])  # fmt: skip


def encode(step: Step) -> bytes:
    drawing = step.drawing
    arrays = (
        step.tokens, step.counts, step.starts, step.seats, step.owners, step.pages, drawing.seats, drawing.top_k,
        drawing.heat, drawing.seeds, step.copies, step.moves,
        step.told,
    )  # fmt: skip
    return _step_encoder.encode((*(array.tobytes() for array in arrays), step.chosen_by_host))


def decode(body: bytes) -> Step:
    """Raises msgspec.MsgspecError or ValueError for what `encode` did not make."""
    *parts, chosen_by_host = _step_decoder.decode(body)
    tokens, counts, starts, seats, owners, pages, taken, top_k, heat, seeds, copies, moves, told = parts

    def numbers(part: bytes, width: int = 0) -> Numbers:
        flat: Numbers = np.frombuffer(part, np.int32)
        return flat.reshape(-1, width) if width else flat

    return Step(
        numbers(tokens), numbers(counts), numbers(starts), numbers(seats), numbers(owners), numbers(pages, 3),
        Drawing(numbers(taken), numbers(top_k), np.frombuffer(heat, np.float32).reshape(3, -1),
                np.frombuffer(seeds, np.int64)),
        numbers(copies, 2), numbers(moves, 3), numbers(told, 2), chosen_by_host,
    )  # fmt: skip
