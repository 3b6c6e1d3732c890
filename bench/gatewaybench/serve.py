"""The gateway as a process, its state given on the command line in place of a cluster's watch.

    python -m bench.gatewaybench.serve --port 8080 --engines 9101,9102

At its end it prints how many requests took more than one attempt. Everything else is the real one: Envoy, the picker with every scoring input, readings, access log, windows.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal

import uvloop

from pagefleet_gateway.app import Gateway
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.envoy import bootstrap
from pagefleet_gateway.envoy.processors import default_workers
from pagefleet_gateway.settings import Settings


async def main(port: int, internal: int, engines: list[int], retries: int, workers: int, peers: list[int]) -> None:
    """`peers`: the internal ports of the other gateways."""
    state = State()
    settings = Settings(
        port=port,
        internal_port=internal,
        workers=workers,
        address="127.0.0.1",
        settle_seconds=0,
        drain_seconds=1,
        pod_name=f"g{internal}",
    )
    retried = 0

    def emit(line: bytes) -> None:
        nonlocal retried
        retried += b'"attempts":1,' not in line

    gateway = Gateway(settings, state, emit)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    try:
        state.replace_pods(
            Pod(f"u{number}", f"p{number}", "team", "chat", "a", f"127.0.0.1:{number}") for number in engines
        )
        for peer in peers:
            gateway.members.put(f"g{peer}", f"127.0.0.1:{peer}")
        state.put_service(Service("team", "chat", "m", (("a", 100),), retries=retries))
        await gateway.start()
        while not state.snapshot.pods:
            await asyncio.sleep(0.02)
        print("serving", flush=True)
        await gateway.run(stop)
    finally:
        await gateway.close()
        print("retried", retried, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--internal-port", type=int, default=0)
    parser.add_argument("--engines", required=True)
    parser.add_argument("--peers", default="", help="the internal ports of the other gateways")
    parser.add_argument("--retries", type=int, default=2)
    parser.add_argument("--workers", type=int, default=default_workers())
    parser.add_argument(
        "--unheld", action="store_true", help="without the filter that holds answers: its cost is the difference"
    )
    options = parser.parse_args()
    if options.unheld:
        bootstrap.engine_filters = lambda _: []
    logging.basicConfig(level=logging.WARNING)
    numbers = [int(text) for text in options.engines.split(",")]
    others = [int(text) for text in options.peers.split(",") if text]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(options.port, options.internal_port, numbers, options.retries, options.workers, others))
