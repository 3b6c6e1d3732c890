"""Reads queue depth and KV pages from an engine pod's /metrics. A reading is whole and sane, or there is none."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from pagefleet_operator.domain.build.names import PORT
from pagefleet_operator.signals.bounded import TooLongError, body

TIMEOUT_SECONDS = 2.0
FRESH_SECONDS = 1.0  # a pod is asked at most this often
MOST_BYTES = 4 << 20
GAUGES = {
    "pagefleet_num_requests_waiting": "waiting",
    "pagefleet_num_requests_running": "running",
    "pagefleet_kv_pages": "total",
    "pagefleet_kv_pages_free": "free",
    "pagefleet_kv_pages_cached": "cached",
}
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Signals:
    """`free_pages` counts blank and reusable ones. `age` in seconds."""

    waiting: int
    running: int
    free_pages: int
    total_pages: int
    age: float


def parse(text: str) -> Signals | None:
    """Signals from a metrics page; None when one is missing, negative or not finite."""
    found: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            name = GAUGES.get(family.name)
            if name is not None:
                for sample in family.samples:
                    found[name] = found.get(name, 0.0) + sample.value
    except ValueError:
        return None
    if set(found) != set(GAUGES.values()) or not all(math.isfinite(v) and v >= 0 for v in found.values()):
        return None
    return Signals(
        waiting=int(found["waiting"]),
        running=int(found["running"]),
        free_pages=int(found["free"] + found["cached"]),
        total_pages=int(found["total"]),
        age=0.0,
    )


class EngineSignals:
    """Keeps the last reading of each pod for a second, so that many decisions ask once."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._last: dict[str, tuple[float, Signals | None]] = {}

    async def read(self, address: str) -> Signals | None:
        """None when the pod does not answer in time or not with sane numbers."""
        now = time.monotonic()
        kept = self._last.get(address)
        if kept is None or now - kept[0] > FRESH_SECONDS:
            kept = (now, await self._fetch(address))
            if len(self._last) > 10_000:
                self._last.clear()
            self._last[address] = kept
        return kept[1]

    async def _fetch(self, address: str) -> Signals | None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        try:
            async with self._session.get(f"http://{address}:{PORT}/metrics", timeout=timeout) as response:
                if response.status != 200:
                    return None
                return parse((await body(response, MOST_BYTES)).decode(errors="replace"))
        except (aiohttp.ClientError, TimeoutError, OSError, TooLongError) as error:
            log.debug("engine %s: %s", address, error)
            return None
