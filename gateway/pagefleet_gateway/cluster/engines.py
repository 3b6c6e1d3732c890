"""Where a pod's engine listens and how its numbers are found on its metrics page, by the annotation that the operator wrote.

Total: an annotation that cannot be read makes a pod whose load is not known, never one that gets no requests.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from pagefleet_contract import engine_metrics
from pagefleet_contract.names import ENGINE_PORT

_VALUE = rb"(?:\{[^}\n]*\})? ([0-9.eE+-]+)(?: [0-9]+)?[ \t\r]*$"


@dataclass(frozen=True)
class Reader:
    """Finds one number on a metrics page: `pattern` has its value, of each series, as the only group."""

    pattern: re.Pattern[bytes]

    def values(self, text: bytes) -> list[float]:
        """Raises ValueError for what is no number."""
        return [float(value) for value in self.pattern.findall(text)]


@dataclass(frozen=True)
class Engine:
    """`known` False: nobody says what the metrics are called, so they are not asked for. None: the engine does not tell
    that number. All None: Pagefleet's own engine, or vLLM behind an InferencePool, read by their well-known names."""

    port: int = ENGINE_PORT
    path: str = engine_metrics.METRICS_PATH
    known: bool = True
    running: Reader | None = None
    waiting: Reader | None = None
    usage: Reader | None = None
    pages: Reader | None = None
    free: Reader | None = None
    cached: Reader | None = None


OURS = Engine()


@functools.lru_cache(1024)
def engine_from(text: str) -> Engine:
    """Of an annotation's text; "" is ours."""
    if not text:
        return OURS
    engine = engine_metrics.engine_from(text)
    metrics = engine.metrics
    if metrics is None or not metrics.running or not metrics.waiting:
        return Engine(engine.port, known=False)
    return Engine(
        engine.port,
        metrics.path,
        running=_reader(metrics.running),
        waiting=_reader(metrics.waiting),
        usage=_reader(metrics.kvUsage),
        pages=_reader(metrics.kvPages),
        free=_reader(metrics.kvPagesFree),
        cached=_reader(metrics.kvPagesCached),
    )


def _reader(text: str) -> Reader | None:
    """None for a number that the engine does not report."""
    if not text:
        return None
    selector = engine_metrics.selector(text)
    name, label = re.escape(selector.name.encode()), re.escape(selector.label.encode())
    if not label:
        return Reader(re.compile(rb"^" + name + _VALUE, re.MULTILINE))
    within = rb"^" + name + rb"\{(?:[^}\n]*,)?" + label + rb'="'
    if selector.value is None:
        return Reader(re.compile(within + rb'([^"\n]*)"', re.MULTILINE))
    return Reader(re.compile(within + re.escape(selector.value.encode()) + rb'"[^}\n]*\} ([0-9.eE+-]+)', re.MULTILINE))
