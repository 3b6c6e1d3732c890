"""Stub engines that may be killed, one process each, started again at once on their port.

    python -m bench.firsttokenbench.engines 9101,9102 first 40

Prints "<port> <process id>" for each start. A forked process serves after a few milliseconds, where a new interpreter would
take hundreds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import uvloop
from bench.gatewaybench import stub


def serve(port: int, headers: str, first_ms: float) -> int:
    child = os.fork()
    if child:
        print(port, child, flush=True)
        return child
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the parent's lines are no child's
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(stub.main([("127.0.0.1", port)], first_ms / 1000, headers))
    os._exit(0)


def main(ports: list[int], headers: str, first_ms: float) -> None:
    running = {serve(port, headers, first_ms): port for port in ports}

    def stop(*_: object) -> None:
        for child in running:
            os.kill(child, signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    while True:
        child, _ = os.wait()
        port = running.pop(child)
        running[serve(port, headers, first_ms)] = port


if __name__ == "__main__":
    main([int(port) for port in sys.argv[1].split(",")], sys.argv[2], float(sys.argv[3]))
