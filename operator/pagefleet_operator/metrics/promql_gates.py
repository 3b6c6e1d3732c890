"""Asks Prometheus for the guard's PromQL gates. Anything but one finite number is no value, with the reason."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any

from pagefleet_operator.domain.spec.rollout import Gate
from pagefleet_operator.domain.status.observation import GateReading
from pagefleet_operator.metrics.prometheus_client import Prometheus, result

MOST_BYTES = 1 << 20
MOST_KEPT = 10_000


def value(document: Any) -> tuple[float | None, str]:
    """The one number of an answer of /api/v1/query, or None and why there is none."""
    kind, found, reason = result(document)
    if reason:
        return None, reason
    if kind == "scalar":
        pair: Any = found
    elif kind != "vector":
        return None, f"the query gives a {kind}, not one value"
    elif len(found) != 1:
        return None, f"the query gives {len(found)} values, not one"
    else:
        pair = found[0].get("value") if isinstance(found[0], Mapping) else None
    if not isinstance(pair, list) or len(pair) != 2:
        return None, "Prometheus' answer has no value"
    try:
        number = float(pair[1])
    except (TypeError, ValueError):
        return None, f"the value is {str(pair[1])[:40]!r}, not a number"
    return (number, "") if math.isfinite(number) else (None, f"the value is {pair[1]}")


class PrometheusGates:
    """Each gate's last answer, kept for its interval."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
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
        document, silence = await self._prometheus.ask(query, MOST_BYTES)
        number, message = (None, silence) if silence else value(document)
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        reading = GateReading(gate.name, number, message)
        self._kept[key] = (now, reading)
        return reading
