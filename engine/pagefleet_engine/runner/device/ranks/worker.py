"""One rank's process: `python -m pagefleet_engine.runner.device.ranks.worker FD JOINING`. Computes the orders of rank 0.

Ends with the engine's process: when its socket is closed, or by the kernel's signal if it hangs in a collective then.
"""

from __future__ import annotations

import ctypes
import signal
import socket
import sys

import msgspec
import torch
from torch import distributed
from torch._C._distributed_c10d import TCPStore

from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.runner.device.model.shard import Shard
from pagefleet_engine.runner.device.ranks.processes import EXIT_CONFIGURATION, device_of, meet
from pagefleet_engine.runner.device.ranks.rank import Rank
from pagefleet_engine.runner.device.ranks.wire import (
    Compute,
    Joining,
    KeepAdapters,
    LoadAdapter,
    Orders,
    Sleep,
    Wake,
    decode,
)

PR_SET_PDEATHSIG = 1


@torch.inference_mode()
def work(orders: Orders, rank: Rank) -> None:
    """Carry out orders until the engine's process closes its end of the socket."""
    while (order := orders.next()) is not None:
        match order:
            case Compute(body):
                step = decode(body)
                changes = rank.changes(step)
                if step.chosen_by_host:
                    for _ in rank.executor.compute(step, changes).prompt_logits:
                        pass  # the ranks compute them together
                else:
                    rank.executor_of(step).launch(step, changes)
            case Sleep(level):
                rank.sleep(level)
            case Wake():
                rank.wake()
            case LoadAdapter(number, path):
                rank.adapters[number] = rank.adapter(path)
            case KeepAdapters(numbers):
                rank.adapters = {number: rank.adapters[number] for number in numbers}


def closed(connection: socket.socket) -> bool:
    """Whether the other end of a socket is closed, and nothing was sent before that."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def main() -> int:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the engine's process decides when to end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    if closed(connection):
        return 0  # the engine's process ended while this one started
    joining = msgspec.json.decode(sys.argv[2], type=Joining)
    if joining.device == "cpu":
        torch.set_num_threads(1)
    meet(joining, TCPStore(joining.host, joining.port, joining.size, is_master=False))
    try:
        rank = Rank(joining.engine, device_of(joining.device, joining.local), Shard(joining.rank, joining.size))
    except ModelError as error:
        sys.stderr.write(f"rank {joining.rank}: {error}\n")
        return EXIT_CONFIGURATION
    work(Orders(connection), rank)
    distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
