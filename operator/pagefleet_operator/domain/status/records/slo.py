"""The stored error budgets of `spec.slo`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DayRecord:
    """The requests of one day (UTC, "2026-11-24") that counted in an objective, and those of them that missed it."""

    day: str
    requests: int
    missed: int


@dataclass(frozen=True)
class ObjectiveRecord:
    """An objective of `spec.slo` and its error budget in the window.

    `left` is the share of the budget that is left, negative when more requests missed than may, None without requests.
    `burn` is the missed share of the last hour divided by the allowed share. `runs_out` is the time at which the budget is
    gone at the last hour's pace, None when it lasts or is gone already.
    """

    name: str
    key: str
    promise: str
    requests: int = 0
    missed: int = 0
    left: float | None = None
    burn: float | None = None
    runs_out: float | None = None
    days: tuple[DayRecord, ...] = ()


@dataclass(frozen=True)
class SLORecord:
    """The error budgets of the service over `window` seconds, as of `written`. `until` is the start of the newest slice in them.

    `left` is the smallest share that is left, for the column of `kubectl get`. `at_risk` are the objectives that are about to break;
    for them the gateways refuse the classes `shed` and give no answer more than `max_output_tokens` new tokens (0: no cap).
    """

    until: float
    written: float = 0.0
    window: float = 0.0
    left: str = ""
    objectives: tuple[ObjectiveRecord, ...] = ()
    at_risk: tuple[str, ...] = ()
    shed: tuple[str, ...] = ()
    max_output_tokens: int = 0
