"""The entry point of `pagefleet-engine`: SIGTERM ends it from the first moment, also as a container's process 1, which the
kernel sends no signal that it has no handler for. Imports nothing else before that; the server drains at SIGTERM later."""

from __future__ import annotations

import os
import signal

ENDED = 128 + signal.SIGTERM


def run() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(ENDED))
    from pagefleet_engine.main import run as serve

    serve()
