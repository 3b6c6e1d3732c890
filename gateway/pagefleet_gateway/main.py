"""Runs one gateway as a process: settings, logging, signals, exit status. Decides nothing about requests."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import signal
import sys

import uvloop

from pagefleet_gateway.app import Gateway
from pagefleet_gateway.cluster.state import State
from pagefleet_gateway.limits.api_keys import KeyFileError
from pagefleet_gateway.log_writer import JSONLines, LogWriter, WriterHandler
from pagefleet_gateway.proxy import GatewayError
from pagefleet_gateway.settings import SettingError, Settings, settings_from
from pagefleet_gateway.watching.engine_keys import secrets_of
from pagefleet_gateway.watching.kube import ClusterWatch, WatchError

log = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0  # for each log to be written at the end, however slow its reader is
# Envoy answers 503 for a picker that hangs after 4 s, and the readiness probe fails. Past HANG_SECONDS the process ends, with
# the stacks of its threads on stderr, and the kubelet starts it again.
HANG_SECONDS, BEAT_SECONDS = 30.0, 2.0


async def end_when_hung(hang_seconds: float = HANG_SECONDS, beat_seconds: float = BEAT_SECONDS) -> None:
    """Until cancelled, end the process once its event loop has been blocked for `hang_seconds`. The timer is a thread of C,
    which needs no Python lock."""
    try:
        while True:
            faulthandler.dump_traceback_later(hang_seconds, exit=True)
            await asyncio.sleep(beat_seconds)
    finally:
        faulthandler.cancel_dump_traceback_later()


async def serve(settings: Settings, errors: LogWriter) -> None:
    """Run one gateway until SIGTERM or SIGINT. `errors` writes the lines of `logging`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    state = State()
    access_log = LogWriter(sys.stdout.fileno())
    gateway = Gateway(settings, state, access_log.write)
    access_log.on_drop = errors.on_drop = gateway.metrics.log_lines_dropped.inc
    watchdog = asyncio.create_task(end_when_hung())
    try:
        watched = ClusterWatch(state, gateway.metrics, settings.kubeconfig, settings.namespace, gateway.pools)
        watched.find_members(settings.pod_namespace, gateway.members)
        async with watched as watch:
            gateway.unsynced_reason = watch.unsynced_reason  # before the first answer of /readyz
            await gateway.start()
            # What is there by now stays: a full collection would walk it again and again, for tens of milliseconds.
            gc.collect()
            gc.freeze()
            gateway.follow(watch)
            if watch.api is not None:
                gateway.read_engine_keys(secrets_of(watch.api))
            log.info("serving clients on port %d, metrics and windows on port %d", gateway.port, gateway.internal_port)
            await gateway.run(stop)
    finally:
        await gateway.close()
        access_log.close(FLUSH_SECONDS)
        watchdog.cancel()


def run() -> None:
    """The console script `pagefleet-gateway`."""
    errors = LogWriter(sys.stderr.fileno())
    handler = WriterHandler(errors)
    handler.setFormatter(JSONLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        _run(errors)
    finally:
        errors.close(FLUSH_SECONDS)


def _run(errors: LogWriter) -> None:
    try:
        settings = settings_from(os.environ)
    except SettingError as error:
        log.error("%s", error)
        raise SystemExit(78) from error
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, errors))
    except KeyFileError as error:
        log.error("%s", error)
        raise SystemExit(78) from error
    except (GatewayError, WatchError) as error:
        log.error("%s", error, exc_info=error.__cause__)
        raise SystemExit(1) from error
