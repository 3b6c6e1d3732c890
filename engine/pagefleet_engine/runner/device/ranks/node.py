"""One of the other machines of a model: `python -m pagefleet_engine.runner.device.ranks.node ADDRESS PORT NODE DEVICE RANKS`.

Joins the first machine, starts its own ranks and passes orders on to them. Schedules nothing and serves nobody. Ends when
the first machine ends, and when one of its own ranks ends: a model without one of its parts cannot compute.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

import msgspec

from pagefleet_engine.runner.device.ranks.nodes import Hello, first_frame, framed, watched
from pagefleet_engine.runner.device.ranks.processes import EXIT_CONFIGURATION, SAME_ERROR_SECONDS, Processes
from pagefleet_engine.runner.device.ranks.wire import READ_BYTES, Joining

RETRY_SECONDS = 0.5
RANKS_SECONDS = 10.0  # the time that ranks have to end after the first machine has ended


def joined(address: str, port: int) -> socket.socket:
    """A connection to the first machine, which may still be starting, or have no name yet."""
    while True:
        try:
            return socket.create_connection((address, port), timeout=10)
        except OSError:
            time.sleep(RETRY_SECONDS)


def serve(address: str, port: int, node: int, devices: int) -> int:
    """Serve until the first machine has ended. Exit the process when a rank has ended."""
    connection = joined(address, port)
    connection.settimeout(None)
    watched(connection)
    connection.sendall(framed(Hello(node, devices)))
    try:
        body, rest = first_frame(connection)
    except OSError:
        return 0  # the first machine has restarted: this one restarts too
    first = msgspec.msgpack.decode(body, type=Joining)
    processes = Processes(lambda rank, status: _ended(rank, first.size, status))
    for local in range(first.size // first.engine.nodes):
        processes.start(msgspec.structs.replace(first, rank=first.rank + local, local=local, host=address))
    try:
        while rest or (rest := connection.recv(READ_BYTES)):
            processes.send(rest)
            rest = b""
    except OSError:
        sys.stderr.write("the connection to the first node is broken\n")
    processes.close(RANKS_SECONDS)
    return 0


def _ended(rank: int, size: int, status: int) -> None:
    if status == EXIT_CONFIGURATION:
        time.sleep(SAME_ERROR_SECONDS)
    sys.stderr.write(f"rank {rank} of {size} ended with status {status}\n")
    sys.stderr.flush()
    os._exit(status if status > 0 else 128 - status)


def main() -> int:
    # The first machine decides when to end: its pod drains first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    address, port, node, device, ranks = sys.argv[1:]
    devices = int(ranks)
    if device == "cuda":
        import torch

        devices = torch.cuda.device_count()
    return serve(address, int(port), int(node), devices)


if __name__ == "__main__":
    sys.exit(main())
