"""Asks Prometheus for the guard's PromQL gates. A gate without one finite number has no value, and a reason."""

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

MAX_BYTES = 1 << 20
MAX_READINGS = 10_000


def value(document: Any) -> tuple[float | None, str]:
    """The single number of an answer of /api/v1/query, or None and the reason why there is none."""
    kind, listed, reason = result(document)
    if reason:
        return None, reason
    if kind == "scalar":
        pair: Any = listed
    elif kind != "vector":
        return None, f"the query gives a {kind}, not one value"
    elif len(listed) != 1:
        return None, f"the query gives {len(listed)} values, not one"
    else:
        pair = listed[0].get("value") if isinstance(listed[0], Mapping) else None
    if not isinstance(pair, list) or len(pair) != 2:
        return None, "Prometheus' answer has no value"
    try:
        number = float(pair[1])
    except (TypeError, ValueError):
        return None, f"the value is {str(pair[1])[:40]!r}, not a number"
    return (number, "") if math.isfinite(number) else (None, f"the value is {pair[1]}")


class PrometheusGates:
    """The last answer to each gate, which stays valid for the gate's interval."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self._last: dict[tuple[str, str], tuple[float, GateReading]] = {}

    async def read(self, gates: Sequence[Gate], names: Mapping[str, str]) -> dict[str, GateReading]:
        """The reading of each gate; `names` fills in $namespace, $service, $stable and $canary."""
        answers = await asyncio.gather(*(self._read(gate, names) for gate in gates))
        return {reading.name: reading for reading in answers}

    async def _read(self, gate: Gate, names: Mapping[str, str]) -> GateReading:
        query = Template(gate.query).safe_substitute(names)
        now, key = time.monotonic(), (gate.name, query)
        last = self._last.get(key)
        if last is not None and now - last[0] < gate.interval:
            return last[1]
        document, silence = await self._prometheus.ask(query, MAX_BYTES)
        number, message = (None, silence) if silence else value(document)
        if len(self._last) >= MAX_READINGS:
            self._last.clear()
        reading = GateReading(gate.name, number, message)
        self._last[key] = (now, reading)
        return reading
