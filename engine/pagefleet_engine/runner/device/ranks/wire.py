"""The orders of the scheduling rank to the other ranks, in one order on all of them: length-prefixed msgpack on a socket.

The framing is written here although pyzmq exists: the sockets are pairs of one machine or one TCP connection for each
machine, whose end must be detected at once (it ends the engine). pyzmq reconnects and buffers behind a closed connection.
"""

from __future__ import annotations

import socket
from typing import Final

import msgspec
import numpy as np

from pagefleet_engine.core.messages import HEADER, Frames
from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.runner.device.steps.step import DeviceStep, Drawing, Numbers

READ_BYTES = 1 << 20


class Joining(msgspec.Struct, frozen=True):
    """The start of a worker: its rank of `size`, its kind and number of device, and the address where the ranks join."""

    engine: EngineConfig
    device: str
    rank: int
    size: int
    port: int
    local: int = 0
    host: str = "127.0.0.1"


class Compute(msgspec.Struct, tag=True, frozen=True):
    step: bytes


class Sleep(msgspec.Struct, tag=True, frozen=True):
    level: int


class Wake(msgspec.Struct, tag=True, frozen=True):
    pass


class LoadAdapter(msgspec.Struct, tag=True, frozen=True):
    """Read the LoRA adapter of a folder, whose steps name it by `number`."""

    number: int
    path: str


class KeepAdapters(msgspec.Struct, tag=True, frozen=True):
    """Forget the adapters of other numbers."""

    numbers: tuple[int, ...]


Order = Compute | Sleep | Wake | LoadAdapter | KeepAdapters
_encoder = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Order)


def frame(order: Order) -> bytes:
    body = _encoder.encode(order)
    return HEADER.pack(len(body)) + body


class Orders:
    """Reads orders from a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._frames = connection, Frames()
        self._ready: list[bytes] = []

    def next(self) -> Order | None:
        """Wait for the next order; None when the socket is closed."""
        while not self._ready:
            data = self._connection.recv(READ_BYTES)
            if not data:
                return None
            self._ready = self._frames.feed(data)
        order: Order = _decoder.decode(self._ready.pop(0))
        return order


_step_encoder = msgspec.msgpack.Encoder()
_step_decoder = msgspec.msgpack.Decoder(tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes,
                                         bytes, bytes, bytes, bytes, bool, bool])  # fmt: skip


def encode(step: DeviceStep) -> bytes:
    drawing = step.drawing
    arrays = (
        step.tokens, step.counts, step.starts, step.seats, step.owners, step.pages, drawing.seats, drawing.top_k,
        drawing.heat, drawing.seeds, step.copies, step.moves,
        step.prompt_rows, step.drafts, step.adapters,
    )  # fmt: skip
    return _step_encoder.encode((*(array.tobytes() for array in arrays), step.chosen_by_host, step.by_draft_model))


def decode(body: bytes) -> DeviceStep:
    """Raises msgspec.MsgspecError or ValueError for bytes that `encode` did not make."""
    *parts, chosen_by_host, by_draft_model = _step_decoder.decode(body)
    (
        tokens, counts, starts, seats, owners, pages, taken, top_k, heat, seeds, copies, moves, prompt_rows, drafts, adapters,
    ) = parts  # fmt: skip

    def numbers(part: bytes, width: int = 0) -> Numbers:
        flat: Numbers = np.frombuffer(part, np.int32)
        return flat.reshape(-1, width) if width else flat

    return DeviceStep(
        numbers(tokens), numbers(counts), numbers(starts), numbers(seats), numbers(owners), numbers(pages, 3),
        Drawing(numbers(taken), numbers(top_k), np.frombuffer(heat, np.float32).reshape(3, -1),
                np.frombuffer(seeds, np.int64)),
        numbers(copies, 2), numbers(moves, 3), numbers(prompt_rows, 2), chosen_by_host, numbers(drafts), by_draft_model,
        numbers(adapters),
    )  # fmt: skip
