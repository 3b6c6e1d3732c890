"""Asks Prometheus for the guard's PromQL gates. Anything but one finite number is no value, with the reason.

Only the operator's own address is asked: a URL in the spec would let whoever may write one aim the operator at any
host, with its token.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import aiohttp

from pagefleet_operator.domain.observation import GateReading
from pagefleet_operator.domain.spec_rollout import Gate
from pagefleet_operator.signals.bounded import TooLongError, body

TIMEOUT_SECONDS = 2.0
MOST_BYTES = 1 << 20
MOST_KEPT = 10_000
log = logging.getLogger(__name__)


def value(document: Any) -> tuple[float | None, str]:
    """The one number of an answer of /api/v1/query, or None and why there is none."""
    if not isinstance(document, Mapping) or document.get("status") != "success":
        told = document.get("error") if isinstance(document, Mapping) else None
        return None, f"Prometheus answers {str(told or 'no success')[:200]}"
    data = document.get("data")
    result = data.get("result") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(result, list):
        return None, "Prometheus' answer has no result"
    if data.get("resultType") == "scalar":
        pair: Any = result
    elif data.get("resultType") != "vector":
        return None, f"the query gives a {data.get('resultType')}, not one value"
    elif len(result) != 1:
        return None, f"the query gives {len(result)} values, not one"
    else:
        pair = result[0].get("value") if isinstance(result[0], Mapping) else None
    if not isinstance(pair, list) or len(pair) != 2:
        return None, "Prometheus' answer has no value"
    try:
        number = float(pair[1])
    except (TypeError, ValueError):
        return None, f"the value is {str(pair[1])[:40]!r}, not a number"
    return (number, "") if math.isfinite(number) else (None, f"the value is {pair[1]}")


class PrometheusGates:
    """`url` "" means that there is no Prometheus to ask. `token_file` is read each time: the token may be renewed."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token_file: Path | None = None) -> None:
        self._session, self._url, self._token_file = session, url.rstrip("/"), token_file
        self._kept: dict[tuple[str, str], tuple[float, GateReading]] = {}

    async def read(self, gates: Sequence[Gate], names: Mapping[str, str]) -> dict[str, GateReading]:
        """`names` fills in $namespace, $service, $stable and $canary."""
        found = await asyncio.gather(*(self._read(gate, names) for gate in gates))
        return {reading.name: reading for reading in found}

    async def _read(self, gate: Gate, names: Mapping[str, str]) -> GateReading:
        query = Template(gate.query).safe_substitute(names)
        now, key = time.monotonic(), (gate.name, query)
        kept = self._kept.get(key)
        if kept is not None and now - kept[0] < gate.interval:
            return kept[1]
        number, message = await self._ask(query)
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        reading = GateReading(gate.name, number, message)
        self._kept[key] = (now, reading)
        return reading

    async def _ask(self, query: str) -> tuple[float | None, str]:
        if not self._url:
            return None, "the operator has no Prometheus (PAGEFLEET_PROMETHEUS_URL)"
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        try:
            async with self._session.post(
                f"{self._url}/api/v1/query",
                data={"query": query, "timeout": f"{TIMEOUT_SECONDS:g}s"},
                headers=self._headers(),
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                if response.status not in (200, 400, 422):
                    return None, f"Prometheus answers {response.status}"
                return value(json.loads(await body(response, MOST_BYTES)))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError, TooLongError) as error:
            log.warning("Prometheus: %s", error or type(error).__name__)
            return None, f"Prometheus does not answer: {type(error).__name__}"

    def _headers(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        return {"Authorization": f"Bearer {self._token_file.read_text().strip()}"}
