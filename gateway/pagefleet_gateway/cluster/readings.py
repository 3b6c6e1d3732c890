"""The readings of each engine's metrics page: queue, KV pages, adapters. They count everybody's requests.

Remembers, and never chooses. An old reading is forgotten: a pod that does not answer counts as idle here, because its
readiness and the ejection after failures already keep requests away from it. scrapes.py requests the pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, replace

from pagefleet_contract import engine_metrics
from pagefleet_gateway.cluster.engines import OWN_ENGINE, Engine, Reader
from pagefleet_gateway.cluster.metrics_page import PageError, label, number, samples
from pagefleet_gateway.cluster.state import Pod
from pagefleet_gateway.cluster.steps import Steps, forget

MAX_AGE_SECONDS = 5.0
# vLLM's names, and ours that mirror them.
_RUNNING, _WAITING, _KV_USAGE, _LORA_INFO = (
    name.removeprefix(engine_metrics.PREFIX).encode()
    for name in (engine_metrics.RUNNING, engine_metrics.WAITING, engine_metrics.KV_USAGE, engine_metrics.LORA_INFO)
)
_KV_PAGES, _KV_PAGE_TOKENS = engine_metrics.KV_PAGES.encode(), engine_metrics.KV_PAGE_TOKENS.encode()
_CACHE_CONFIG = b"vllm:cache_config_info"
_PREFIXES = (engine_metrics.PREFIX.encode(), engine_metrics.VLLM_PREFIX.encode())
_ADAPTERS = engine_metrics.RUNNING_ADAPTERS.encode()


@dataclass(frozen=True)
class Reading:
    """One engine's load at one scrape."""

    running: float = 0.0  # requests
    waiting: float = 0.0  # requests
    foreign: float = 0.0  # requests, running or waiting, that no gateway has told about
    kv_usage: float = 0.0  # share of KV pages in use, 0 to 1
    cache_tokens: float = 0.0  # that its KV pages hold; 0: not known
    adapters: frozenset[str] = frozenset()  # LoRA adapters that it serves now


UNKNOWN = Reading()


class Readings:
    """The last reading of each pod."""

    def __init__(self, in_flight: Callable[[Pod], float] = lambda _: 0.0) -> None:
        """`in_flight` returns how many requests on a pod are known: this gateway's, and those that others tell about."""
        self._in_flight = in_flight
        self._readings: dict[str, tuple[Reading, float]] = {}  # uid -> (reading, steady seconds)
        self._sizes: dict[str, tuple[str, float]] = {}  # uid -> (cache, tokens)
        # Called with a pod's cache and the tokens that it holds, when an engine states them first and when they change.
        self.on_size: Callable[[str, float], None] = lambda _, __: None

    def of(self, pod: Pod, now: float) -> Reading:
        """Return the pod's reading; all zero when there is none or it is too old."""
        reading, at = self._readings.get(pod.uid, (UNKNOWN, -MAX_AGE_SECONDS))
        return reading if now - at < MAX_AGE_SECONDS else UNKNOWN

    def put(self, pod: Pod, text: bytes, now: float) -> None:
        reading = reading_in(text, pod.engine)
        if reading is not None:
            foreign = max(0.0, reading.running + reading.waiting - self._in_flight(pod))
            self._readings[pod.uid] = (replace(reading, foreign=foreign), now)
            size = (pod.cache, reading.cache_tokens)
            if reading.cache_tokens and self._sizes.get(pod.uid) != size:
                self._sizes[pod.uid] = size
                self.on_size(*size)

    def retain(self, uids: Container[str]) -> Steps:
        """Forget pods that are not among `uids`."""
        yield from forget(self._readings, uids)
        yield from forget(self._sizes, uids)


def reading_in(text: bytes, engine: Engine = OWN_ENGINE) -> Reading | None:
    """Return the reading in a Prometheus text, with requests summed over label sets; None when it has none."""
    if engine.running is not None and engine.waiting is not None:
        return _configured_reading(text, engine, engine.running, engine.waiting)
    try:
        running, waiting, usage = (_own(text, name) for name in (_RUNNING, _WAITING, _KV_USAGE))
        if not (running or waiting or usage):
            return None
        return Reading(
            running=sum(running),
            waiting=sum(waiting),
            kv_usage=max(usage, default=0.0),
            adapters=_adapters(text),
            cache_tokens=_cache_tokens(text),
        )
    except PageError:
        return None


def _own(text: bytes, name: bytes) -> list[float]:
    return [value for prefix in _PREFIXES for value in Reader(prefix + name).values(text)]


def _configured_reading(text: bytes, engine: Engine, running: Reader, waiting: Reader) -> Reading | None:
    """Read the metrics by the names in the pod's annotation. Without KV pages the pod's cache counts as empty."""
    try:
        run, wait = running.values(text), waiting.values(text)
        usage = max(engine.kv_usage.values(text), default=0.0) if engine.kv_usage else _usage_by_pages(text, engine)
        adapters = _adapters(text)
    except PageError:
        return None
    if not run or not wait:
        return None
    return Reading(
        running=sum(run),
        waiting=sum(wait),
        kv_usage=min(1.0, max(0.0, usage)),
        adapters=adapters,
        cache_tokens=_cache_tokens(text),
    )


def _usage_by_pages(text: bytes, engine: Engine) -> float:
    """Return the share of KV pages in use, from their counts."""
    if engine.kv_pages_total is None or engine.kv_pages_blank is None:
        return 0.0
    total, blank = sum(engine.kv_pages_total.values(text)), sum(engine.kv_pages_blank.values(text))
    cached = sum(engine.kv_pages_cached.values(text)) if engine.kv_pages_cached else 0.0
    return 1.0 - (blank + cached) / total if total > 0 else 0.0


def _cache_tokens(text: bytes) -> float:
    """Return how many tokens the KV pages of our engine or vLLM hold, those of all its caches; 0 where no page says so."""
    try:
        pages, sizes = (Reader(name).values(text) for name in (_KV_PAGES, _KV_PAGE_TOKENS))
        tokens = sum(pages) * max(sizes, default=0.0)
        for labels, _ in samples(text, _CACHE_CONFIG):
            blocks, size = (label(labels, name) for name in (b"num_gpu_blocks", b"block_size"))
            tokens += number(blocks) * number(size) if blocks and size else 0.0
    except PageError:
        return 0.0
    return tokens if 0 < tokens < math.inf else 0.0


def _adapters(text: bytes) -> frozenset[str]:
    listed = (
        label(labels, _ADAPTERS) or b"" for prefix in _PREFIXES for labels, _ in samples(text, prefix + _LORA_INFO)
    )
    found = {name for names in listed for name in names.decode("utf-8", "replace").split(",")} - {""}
    return frozenset(found) if found else UNKNOWN.adapters
