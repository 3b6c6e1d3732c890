"""The messages between the API process and the engine process: length-prefixed msgpack, tagged by type."""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from pagefleet_engine.core.requests import EngineRequest, EngineStats, TokenOutput

HEADER: Final = struct.Struct("!I")
MAX_BYTES = 64 << 20


class Add(msgspec.Struct, tag=True, frozen=True):
    request: EngineRequest


class Abort(msgspec.Struct, tag=True, frozen=True):
    """Ends one answer of a request, or all of them."""

    request_id: str
    index: int | None = None


class LoadAdapter(msgspec.Struct, tag=True, frozen=True):
    """Answered by Done with the same `id`."""

    id: int
    name: str
    path: str


class UnloadAdapter(msgspec.Struct, tag=True, frozen=True):
    id: int
    name: str


class Sleep(msgspec.Struct, tag=True, frozen=True):
    """Give memory back: level 1 the KV pages, level 2 the weights as well. Only with no request open."""

    id: int
    level: int


class Wake(msgspec.Struct, tag=True, frozen=True):
    id: int


class Pin(msgspec.Struct, tag=True, frozen=True):
    """Keep the full pages of `tokens`, those that are still to be computed too, until a time of the engine's monotonic clock.

    Requests of the same `adapter` and `cache_salt` find them. A second pin of a `name` makes it last longer.
    """

    id: int
    name: str
    tokens: tuple[int, ...]
    adapter: str | None
    cache_salt: str
    until: float


class Unpin(msgspec.Struct, tag=True, frozen=True):
    """Forget a pin, known or not."""

    id: int
    name: str


class Done(msgspec.Struct, tag=True, frozen=True):
    """The answer to a command; `error` says why it could not be carried out."""

    id: int
    error: str | None


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The engine has loaded its model and done a real forward pass. `description` goes into the info metric."""

    max_model_len: int
    capacity_tokens: int
    hidden_size: int
    description: dict[str, str]
    stats: EngineStats


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The engine cannot start: the field that the user can fix, and how."""

    field: str
    message: str


class EngineStep(msgspec.Struct, tag=True, frozen=True):
    """Results of one step; `seconds` is how long it took. `received`: messages taken before it, since the start."""

    outputs: list[TokenOutput]
    stats: EngineStats
    seconds: float
    prefill_tokens: int = 0
    decode_tokens: int = 0
    received: int = 0


Command = LoadAdapter | UnloadAdapter | Sleep | Wake | Pin | Unpin
ToEngine = Add | Abort | Command
FromEngine = Ready | Failed | EngineStep | Done
_encoder = msgspec.msgpack.Encoder()
to_engine: Final = msgspec.msgpack.Decoder(ToEngine)
from_engine: Final = msgspec.msgpack.Decoder(FromEngine)


def frame(message: ToEngine | FromEngine) -> bytes:
    """One message with its length before it."""
    body = _encoder.encode(message)
    return HEADER.pack(len(body)) + body


class Frames:
    """Cuts a byte stream into message bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that `data` completes. Raises ValueError on a length that no peer of ours sends."""
        self._buffer += data
        bodies = []
        while len(self._buffer) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer)
            if length > MAX_BYTES:
                raise ValueError(f"a message of {length} bytes is not ours")
            if len(self._buffer) < HEADER.size + length:
                break
            bodies.append(bytes(self._buffer[HEADER.size : HEADER.size + length]))
            del self._buffer[: HEADER.size + length]
        return bodies
