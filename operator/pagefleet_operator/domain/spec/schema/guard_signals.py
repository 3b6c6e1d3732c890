"""The signals of the rollout guard: one table, read by the schema, the rules, the typed values, the analysis and the pages for
people.

A new signal is a row here. If engines report a histogram of it, it is also a field of the contract's `EngineMetrics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Source(StrEnum):
    """Who measures: the gateways' windows, the engines' own histograms, or those histograms as Prometheus stores them."""

    GATEWAY = "Gateway"
    ENGINE = "Engine"
    PROMETHEUS = "Prometheus"


@dataclass(frozen=True)
class GuardSignal:
    """A latency in seconds. `title` is for people. `gateway`: a client's side measures it, so gateways and `pagefleet bench`
    do. `histogram` describes the engines' own histogram of it, "" where they have none. `per_token`: a request adds one
    measurement for each token, not one."""

    name: str
    title: str
    gateway: bool = False
    histogram: str = ""
    per_token: bool = False

    @property
    def engine(self) -> bool:
        return bool(self.histogram)

    @property
    def default_source(self) -> Source:
        return Source.GATEWAY if self.gateway else Source.ENGINE


GUARD_SIGNALS: Mapping[str, GuardSignal] = {
    row.name: row
    for row in (
        GuardSignal("ttft", "time to first token", True, "Histogram of seconds to the first token."),
        GuardSignal("itl", "gap between tokens", False, "Histogram of seconds between two tokens.", per_token=True),
        GuardSignal("tpot", "time per output token", True),
        GuardSignal("e2e", "whole answer", True, "Histogram of seconds to the last token."),
        GuardSignal("queue", "wait in the queue", False, "Histogram of seconds in the queue."),
    )
}
GATEWAY_SIGNALS = tuple(name for name, row in GUARD_SIGNALS.items() if row.gateway)
ENGINE_SIGNALS = tuple(name for name, row in GUARD_SIGNALS.items() if row.engine)
ENGINE_ONLY = tuple(name for name in ENGINE_SIGNALS if name not in GATEWAY_SIGNALS)
GATEWAY_ONLY = tuple(name for name in GATEWAY_SIGNALS if name not in ENGINE_SIGNALS)
ERRORS = "errors"  # the share of failed requests, which every source counts


def source_of(signal: str, given: str | None) -> Source:
    """The source that measures a signal, or counts ERRORS, where the spec gives `given` or nothing."""
    if given:
        return Source(given)
    return Source.GATEWAY if signal == ERRORS else GUARD_SIGNALS[signal].default_source


def title(signal: str) -> str:
    """The signal for people; the name itself for one that this version does not know."""
    return GUARD_SIGNALS[signal].title if signal in GUARD_SIGNALS else signal
