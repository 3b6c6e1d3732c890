"""What the scheduling rank tells the others, in this order on all of them: length-prefixed msgpack on a socket."""

from __future__ import annotations

import socket
from typing import Final

import msgspec

from pagefleet_engine.core.messages import HEADER, Frames
from pagefleet_engine.core.requests import EngineConfig

READ_BYTES = 1 << 20


class Joining(msgspec.Struct, frozen=True):
    """How a worker begins: its rank of `size`, its kind of device, and where the ranks meet on this machine."""

    engine: EngineConfig
    device: str
    rank: int
    size: int
    port: int


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
