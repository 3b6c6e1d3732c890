"""`spec.slo`: the objectives of a service as the gateways count them and the operator reports them.

A request keeps an objective or misses it. An objective allows a share of requests to miss it in a rolling window, which is its
error budget (Site Reliability Workbook, chapters 2 and 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_contract.quantity import fraction

ERRORS = "errors"
LATENCIES = ("ttft", "tpot", "e2e")  # seconds that a gateway measures for each request
MAX_OBJECTIVES = 8
DEFAULT_QUANTILE, DEFAULT_WINDOW = 0.95, "30d"


@dataclass(frozen=True)
class Objective:
    """`allowed` is the share of requests that may miss. `seconds` is the bound of a latency, None for errors. `priority` is
    the class of `spec.traffic.priorities` whose requests count, "" for all requests."""

    name: str
    signal: str
    allowed: float
    seconds: float | None = None
    priority: str = ""

    @property
    def key(self) -> str:
        """The name of its counters: it changes with what a miss is, so that counts of two meanings are never added."""
        bound = "" if self.seconds is None else f"<={self.seconds:g}"
        return f"{self.name}/{self.signal}{bound}/{self.priority}"

    @property
    def promise(self) -> str:
        """The objective for people, such as "95% of ttft within 2 s"."""
        of = f" of priority {self.priority}" if self.priority else ""
        if self.seconds is None:
            return f"at most {_percent(self.allowed)} of requests{of} fail"
        return f"{_percent(1 - self.allowed)} of {self.signal}{of} within {self.seconds:g} s"


def objectives(slo: Mapping[str, object]) -> tuple[Objective, ...]:
    """The objectives of `spec.slo`, {} where it is not given. Total: an entry that cannot be used is left out."""
    listed = slo.get("objectives")
    entries = listed[:MAX_OBJECTIVES] if isinstance(listed, list) else []
    return tuple(found for entry in entries if isinstance(entry, Mapping) and (found := _objective(entry)))


def _objective(raw: Mapping[str, object]) -> Objective | None:
    name, signal, priority = raw.get("name"), raw.get("signal"), raw.get("priority", "")
    if not isinstance(name, str) or not name or not isinstance(priority, str):
        return None
    if signal == ERRORS:
        rate = raw.get("maxRate")
        try:
            return Objective(name, ERRORS, fraction(rate), None, priority) if isinstance(rate, str) else None
        except ValueError:
            return None
    seconds, quantile = _number(raw.get("seconds")), _number(raw.get("quantile", DEFAULT_QUANTILE))
    if signal not in LATENCIES or seconds is None or quantile is None or seconds <= 0 or not 0 < quantile < 1:
        return None
    return Objective(name, str(signal), round(1 - quantile, 9), seconds, priority)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _percent(share: float) -> str:
    return f"{round(100 * share, 4):g}%"
