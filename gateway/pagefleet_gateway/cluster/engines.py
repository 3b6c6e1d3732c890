"""The engine of a pod: its port, and the readers of its metrics page, from the annotation that the operator wrote.

Total: an annotation that cannot be read makes a pod whose load is not known, never one that gets no requests.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pagefleet_contract import engine_metrics
from pagefleet_contract.disaggregation import DEFAULT_MIN_PROMPT_TOKENS
from pagefleet_contract.names import ENGINE_PORT
from pagefleet_gateway.cluster.metrics_page import label, number, samples


@dataclass(frozen=True)
class Reader:
    """Reads one number from a metrics page, by its selector: a metric, or those of its series with a label's value. Without
    that value the number is the label's value itself.
    """

    name: bytes
    label: bytes = b""
    value: bytes | None = None

    def values(self, page: bytes) -> list[float]:
        """Return the values of all series. Raises PageError."""
        found = []
        for labels, value in samples(page, self.name):
            if not self.label:
                found.append(number(value))
                continue
            labelled = label(labels, self.label)
            if labelled is not None and self.value is None:
                found.append(number(labelled))
            elif labelled is not None and labelled == self.value:
                found.append(number(value))
        return found


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
    priority: str = ""  # which `priority` of a request it serves first: HIGHER_FIRST, LOWER_FIRST, or "" for none
    # Uncached prompt tokens from which on a prefill pod is asked; 0: always.
    prefill_from: int = DEFAULT_MIN_PROMPT_TOKENS


OWN_ENGINE = Engine()
_OWN_BY_PRIORITY = Engine(priority=engine_metrics.HIGHER_FIRST)
_FCFS = re.compile(r"--scheduling-policy[= ]fcfs")


def own_engine(args: Sequence[str]) -> Engine:
    """Return Pagefleet's own engine with these arguments. It serves by priority unless they state another policy."""
    return OWN_ENGINE if _FCFS.search(" ".join(args)) else _OWN_BY_PRIORITY


@functools.lru_cache(1024)
def engine_from(text: str) -> Engine:
    """Return the engine of an annotation's text; "" is Pagefleet's own."""
    if not text:
        return OWN_ENGINE
    engine = engine_metrics.engine_from(text)
    metrics, least = engine.metrics, 0 if engine.prefills_all else engine.prefill_from or DEFAULT_MIN_PROMPT_TOKENS
    if metrics is None or not metrics.running or not metrics.waiting:
        return Engine(engine.port, scraped=False, priority=engine.priority, prefill_from=least)
    return Engine(
        engine.port,
        metrics.path,
        running=_reader(metrics.running),
        waiting=_reader(metrics.waiting),
        kv_usage=_reader(metrics.kvUsage),
        kv_pages_total=_reader(metrics.kvPages),
        kv_pages_blank=_reader(metrics.kvPagesFree),
        kv_pages_cached=_reader(metrics.kvPagesCached),
        priority=engine.priority,
        prefill_from=least,
    )


def _reader(text: str) -> Reader | None:
    """Return the reader of a selector; None for "", a number that the engine does not report."""
    if not text:
        return None
    selector = engine_metrics.selector(text)
    value = None if selector.value is None else selector.value.encode()
    return Reader(selector.name.encode(), selector.label.encode(), value)
