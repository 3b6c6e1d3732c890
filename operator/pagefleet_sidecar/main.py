"""`pagefleet-sidecar --revision NAME [--spare]`: the routing sidecar of a decode pod or of a warm spare. It ends after the engine, whose
streams it carries."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from pagefleet_contract.disaggregation import (
    BOOTSTRAP,
    DEFAULT_PREFILL_TIMEOUT,
    DEFAULT_PROTOCOL,
    KV_TRANSFER_PARAMS,
    PROTOCOL_FLAG,
    SIDECAR_COMMAND,
    SPARE_FLAG,
)
from pagefleet_contract.names import ENGINE_PORT, SIDECAR_ENGINE_PORT
from pagefleet_contract.quantity import seconds
from pagefleet_sidecar.at_once import AtOnce
from pagefleet_sidecar.guard import Guard
from pagefleet_sidecar.in_turn import InTurn
from pagefleet_sidecar.proxy import Proxy, Settings

POLL_SECONDS = 0.5
MAX_HEADER_BYTES = 64 * 1024  # uvicorn's bound
PROTOCOLS: Mapping[str, type[Proxy]] = {KV_TRANSFER_PARAMS: InTurn, BOOTSTRAP: AtOnce}
log = logging.getLogger("pagefleet-sidecar")


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog=SIDECAR_COMMAND, description="Stand before the engine of a pod", allow_abbrev=False
    )
    root.add_argument("--revision", required=True, help="of this pod; prefill pods of other revisions are not asked")
    root.add_argument("--port", type=int, default=ENGINE_PORT, help="where requests come in")
    root.add_argument("--engine-port", type=int, default=SIDECAR_ENGINE_PORT, help="of the engine in this pod")
    root.add_argument("--prefill-port", type=int, default=ENGINE_PORT, help="of the engines in prefill pods")
    root.add_argument("--prefill-timeout", type=seconds, default=seconds(DEFAULT_PREFILL_TIMEOUT), metavar="DURATION")
    root.add_argument(
        PROTOCOL_FLAG, choices=sorted(PROTOCOLS), default=DEFAULT_PROTOCOL, help="how the engines' two legs meet"
    )
    root.add_argument(
        SPARE_FLAG,
        action="store_true",
        help="the pod is a warm spare: only clients' routes and those of sleep are open",
    )
    return root


@asynccontextmanager
async def listening(proxy: Proxy, host: str | None, port: int) -> AsyncIterator[int]:
    """Serve on a port (0: a free one), which is returned. `host` None stands for every address of the pod."""
    runner = web.AppRunner(
        proxy.application(),
        access_log=None,
        handler_cancellation=True,  # a client that leaves ends both legs
        shutdown_timeout=1.0,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
    )
    async with proxy:
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port, backlog=1024).start()
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()


async def ended(proxy: Proxy) -> None:
    """Return when the engine takes no more connections and no request is left: it drains, and the sidecar carries its streams."""
    while proxy.in_flight or await proxy.engine_listens():  # noqa: ASYNC110 - the engine is another process
        await asyncio.sleep(POLL_SECONDS)


async def _main(arguments: argparse.Namespace) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    settings = Settings(
        arguments.revision, arguments.engine_port, arguments.prefill_timeout, prefill_port=arguments.prefill_port
    )
    proxy = Guard(settings) if arguments.spare else PROTOCOLS[arguments.protocol](settings)
    async with listening(proxy, None, arguments.port):
        await stop.wait()
        log.info("stopping after the engine: %d requests are in flight", proxy.in_flight)
        await ended(proxy)


def run() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(_main(parser().parse_args()))


if __name__ == "__main__":
    run()
