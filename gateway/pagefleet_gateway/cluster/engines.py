"""The engine of a pod: its port, and the readers of its metrics page, from the annotation that the operator wrote.

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
    """Reads one number from a metrics page. The only group of `pattern` is the number's value, once for each series."""

    pattern: re.Pattern[bytes]

    def values(self, text: bytes) -> list[float]:
        """Return the values of all series. Raises ValueError when one is not a number."""
        return [float(value) for value in self.pattern.findall(text)]


@dataclass(frozen=True)
class Engine:
    """The address and the metrics of an engine. A reader of None: the engine does not report that number. All None:
    Pagefleet's own engine, or vLLM behind an InferencePool, whose metrics have well-known names.
    """

    port: int = ENGINE_PORT
    path: str = engine_metrics.METRICS_PATH
    scraped: bool = True  # False: the names of its metrics are not known
    running: Reader | None = None
    waiting: Reader | None = None
    kv_usage: Reader | None = None
    kv_pages_total: Reader | None = None
    kv_pages_blank: Reader | None = None
    kv_pages_cached: Reader | None = None


OWN_ENGINE = Engine()


@functools.lru_cache(1024)
def engine_from(text: str) -> Engine:
    """Return the engine of an annotation's text; "" is Pagefleet's own."""
    if not text:
        return OWN_ENGINE
    engine = engine_metrics.engine_from(text)
    metrics = engine.metrics
    if metrics is None or not metrics.running or not metrics.waiting:
        return Engine(engine.port, scraped=False)
    return Engine(
        engine.port,
        metrics.path,
        running=_reader(metrics.running),
        waiting=_reader(metrics.waiting),
        kv_usage=_reader(metrics.kvUsage),
        kv_pages_total=_reader(metrics.kvPages),
        kv_pages_blank=_reader(metrics.kvPagesFree),
        kv_pages_cached=_reader(metrics.kvPagesCached),
    )


def _reader(text: str) -> Reader | None:
    """Return the reader of a selector; None for "", a number that the engine does not report."""
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
