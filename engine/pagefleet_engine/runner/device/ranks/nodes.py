"""The other machines of a model, seen from the first one: one connection for each, from node.py there. Steps are sent on
it and nothing returns: the ranks of that machine and rank 0 synchronise in their collectives.

The connection has no encryption and no authentication, like the collectives themselves: only the group's own pods may
reach the port (manifests/engines).
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from pagefleet_contract.addresses import every_address, listening_socket
from pagefleet_engine.core.messages import HEADER, Frames
from pagefleet_engine.runner.device.ranks.wire import READ_BYTES, Joining

HELLO_SECONDS = 10.0
# Seconds, seconds, times, milliseconds: a peer that is gone shows after 25 s, whether data is on its way or not.
SILENCE = (
    (socket.TCP_KEEPIDLE, 10),
    (socket.TCP_KEEPINTVL, 5),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, 25_000),
)


class Hello(msgspec.Struct, frozen=True):
    """The first message of a machine: its number, and how many ranks it can run."""

    node: int
    devices: int


hello: Final = msgspec.msgpack.Decoder(Hello)


def framed(message: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    return HEADER.pack(len(body)) + body


def watched(connection: socket.socket) -> None:
    """Detect a machine that has lost its power: it does not even close the connection."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in SILENCE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def first_frame(connection: socket.socket) -> tuple[bytes, bytes]:
    """The body of the first message, and the bytes behind it. Raises ConnectionError when the connection is closed,
    ValueError for bytes that no peer of ours sends."""
    data = b""
    while True:
        more = connection.recv(READ_BYTES)
        if not more:
            raise ConnectionError("the connection has ended")
        data += more
        if bodies := Frames().feed(data):
            return bodies[0], data[HEADER.size + len(bodies[0]) :]


class Nodes:
    """The other machines of a group of `size`; this one listens on `port`. `lost` names the one that is gone, "" while all
    are connected; `gone` is called with it in a thread of its own."""

    def __init__(self, size: int, port: int, gone: Callable[[str], None]) -> None:
        self._size, self._gone = size, gone
        self._listener = listening_socket(every_address(), port)
        self._connections: dict[int, socket.socket] = {}
        self._closing = False
        self.lost = ""

    def gather(self, first: Joining) -> None:
        """Wait for the other machines without a limit, and send each the start of its ranks. `first` is rank 0's."""
        each = first.size // self._size
        sys.stderr.write(f"waiting for {self._size - 1} other nodes on port {self._listener.getsockname()[1]}\n")
        sys.stderr.flush()
        while len(self._connections) < self._size - 1:
            connection, _ = self._listener.accept()
            try:
                self._greet(connection, each)
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                sys.stderr.write(f"a connection that is no node of this model: {error}\n")
                connection.close()
        self._listener.close()
        for node, connection in self._connections.items():
            connection.sendall(framed(msgspec.structs.replace(first, rank=node * each)))
            threading.Thread(target=self._watch, args=(node, connection), daemon=True).start()

    def send(self, body: bytes) -> None:
        for connection in self._connections.values():
            connection.sendall(body)

    def close(self) -> None:
        """Close the connections, at which the other machines end."""
        self._closing = True
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _greet(self, connection: socket.socket, each: int) -> None:
        """Raises ValueError for a machine that cannot take part. A node that connects again was restarted: the latest counts."""
        connection.settimeout(HELLO_SECONDS)
        received = hello.decode(first_frame(connection)[0])
        connection.settimeout(None)
        if not 1 <= received.node < self._size:
            raise ValueError(f"node {received.node} of {self._size}")
        if received.devices < each:
            raise ValueError(f"node {received.node} has {received.devices} GPUs, {each} are needed")
        watched(connection)
        if (before := self._connections.pop(received.node, None)) is not None:
            before.close()
        self._connections[received.node] = connection

    def _watch(self, node: int, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.recv(1)
        if not self._closing:
            self.lost = f"node {node} of {self._size} is gone: the engine cannot go on"
            self._gone(self.lost)
