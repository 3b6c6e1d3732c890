"""The load that engines report: one value, carried whole from an engine's metrics page to the replica count. Data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

# Fields that a metrics page has as gauges, with their names there (EngineMetrics). `kv_pages_total` and `kv_pages_free`
# are worked out from several gauges.
GAUGES = {
    "running": "running",
    "waiting": "waiting",
    "waiting_tokens": "waitingTokens",
    "slots": "maxSequences",
    "kv_pages_cached": "kvPagesCached",
}
# Fields that engines report as counters, with their names there; a load has their growth per second.
RATES = {"preemptions": "preemptions", "tokens": "tokens", "prompt_tokens": "promptTokens"}


@dataclass(frozen=True)
class EngineLoad:
    """The load of one engine, or of several engines together.

    `kv_pages_free` counts the KV pages that a new request can take: blank pages, and cached pages that can be reused.
    `kv_pages_cached` counts the cached pages among them. A number is None where the engine does not report it.
    `preemptions`, generated `tokens` and `prompt_tokens` are per second since the reading before; an engine's first reading has
    none of them.
    """

    running: int = 0  # requests
    waiting: int = 0  # requests queued in the engine
    waiting_tokens: int | None = None  # prompt tokens of the queued requests
    slots: int | None = None  # requests that can run at once
    kv_pages_total: int | None = None
    kv_pages_free: int | None = None
    kv_pages_cached: int | None = None
    preemptions: float | None = None
    tokens: float | None = None
    prompt_tokens: float | None = None

    @property
    def kv_pages_used(self) -> int:
        """KV pages that requests hold; 0 where the engine does not report its pages."""
        if self.kv_pages_total is None or self.kv_pages_free is None:
            return 0
        return self.kv_pages_total - self.kv_pages_free

    @property
    def kv_share_free(self) -> float | None:
        """The free share of the KV pages, 0 to 1; None where the engine does not report its pages."""
        return 1 - self.kv_pages_used / self.kv_pages_total if self.kv_pages_total else None


NO_LOAD = EngineLoad()


def total(loads: Iterable[EngineLoad]) -> EngineLoad:
    """The load of several engines together. An engine that does not report a number adds nothing to that number."""
    every, sums = tuple(loads), dict[str, Any]()
    for entry in fields(EngineLoad):
        reported = [value for load in every if (value := getattr(load, entry.name)) is not None]
        if reported:
            sums[entry.name] = sum(reported)
    return EngineLoad(**sums)
