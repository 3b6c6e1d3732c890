"""Reads Envoy's access log line by line, and lets other work in between.

Envoy writes the lines of some fifty milliseconds at once. To account for all of them in one go would keep the requests that have come
meanwhile waiting for their picks for several milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from pagefleet_gateway.measuring.access_log import FailedAttempt, LogLine, parse

TURN_LINES = 4  # that are read in one turn of the event loop: less than half a millisecond with what they cause
log = logging.getLogger(__name__)


async def log_lines(reader: asyncio.StreamReader) -> AsyncIterator[LogLine | FailedAttempt]:
    """Yield what the lines say until the log ends. Those that are too long, or no access log's, are left out."""
    read = 0
    while True:
        read += 1
        if read % TURN_LINES == 0:
            await asyncio.sleep(0)
        try:
            text = await reader.readline()
        except ValueError as error:
            log.warning("dropped a line of Envoy's access log that is too long: %s", error)
            continue
        if not text:
            return
        if (line := parse(text)) is not None:
            yield line
