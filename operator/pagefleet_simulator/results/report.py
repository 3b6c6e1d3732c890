"""Outcomes as a table for people and as JSON for programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from pagefleet_simulator.results.outcome import Objective, Outcome
from pagefleet_simulator.results.promises import Kept


def table(outcomes: Sequence[Outcome], objective: Objective, per_hour: float | None, title: str = "") -> Table:
    shown = Table(title=title or None, title_justify="left")
    for column in ("scaler", "SLO met", "TTFT p50", "p95", "TPOT p95", "accel. h", "replicas"):
        shown.add_column(column, justify="left" if column == "scaler" else "right", no_wrap=True)
    if per_hour is not None:
        shown.add_column("cost", justify="right")
        shown.add_column("per 1k tok", justify="right")
    for column in ("changes", "flaps", "refused"):
        shown.add_column(column, justify="right")
    for outcome in outcomes:
        row = summary(outcome, objective, per_hour)
        cells = [
            outcome.scaler,
            f"{row['attainment']:.2%}",
            _seconds(row["ttft_p50"]),
            _seconds(row["ttft_p95"]),
            _seconds(row["tpot_p95"]),
            f"{outcome.accelerator_hours:.1f}",
            f"{outcome.mean_replicas:.1f}",
        ]
        if per_hour is not None:
            each = row["cost_per_1k_tokens"]
            cells += [f"{row['cost']:.2f}", f"{each:.5f}" if each is not None else "-"]
        shown.add_row(*cells, str(len(outcome.events)), str(outcome.flaps), f"{outcome.dropped:.0f}")
    return shown


def promised(about: Mapping[str, Sequence[Kept]]) -> Table:
    """A row for each promise of `spec.slo`, with the share of requests that kept it, by scaler; broken ones in red."""
    shown = Table(title="promises of spec.slo", title_justify="left")
    for column in ("promise", "requests", *about):
        shown.add_column(column, justify="left" if column == "promise" else "right")
    for row in zip(*about.values(), strict=True):
        cells = ["-" if one.share is None else f"{one.share:.2%}" for one in row]
        colours = [f"[red]{cell} broken[/red]" if one.broken else cell for one, cell in zip(row, cells, strict=True)]
        shown.add_row(f"{row[0].objective.name}: {row[0].objective.promise}", str(row[0].requests), *colours)
    return shown


def as_numbers(about: Kept) -> dict[str, Any]:
    return {
        "name": about.objective.name,
        "promise": about.objective.promise,
        "requests": about.requests,
        "missed": about.missed,
        "broken": about.broken,
    }


def summary(outcome: Outcome, objective: Objective, per_hour: float | None = None) -> dict[str, Any]:
    """Numbers only; times in seconds. None where nothing was measured."""
    latencies = outcome.latencies
    numbers: dict[str, Any] = {
        "scaler": outcome.scaler,
        "mode": outcome.mode,
        "seconds": round(outcome.seconds, 1),
        "requests": round(outcome.requests),
        "served": round(outcome.served),
        "dropped": round(outcome.dropped),
        "left": round(outcome.left),
        "tokens": round(outcome.tokens),
        "preemptions": round(outcome.preemptions),
        "attainment": round(outcome.attainment(objective), 6),
        "ttft_p50": _rounded(latencies.quantile(latencies.ttft, 0.5)),
        "ttft_p95": _rounded(latencies.quantile(latencies.ttft, 0.95)),
        "tpot_p50": _rounded(latencies.quantile(latencies.tpot, 0.5)),
        "tpot_p95": _rounded(latencies.quantile(latencies.tpot, 0.95)),
        "accelerator_hours": round(outcome.accelerator_hours, 4),
        "mean_replicas": round(outcome.mean_replicas, 3),
        "scale_events": [[round(event.time, 1), event.before, event.after] for event in outcome.events],
        "flaps": outcome.flaps,
    }
    if per_hour is not None:
        numbers["cost"] = round(per_hour * outcome.accelerator_hours, 4)
        numbers["cost_per_1k_tokens"] = _rounded(outcome.cost_per_1k_tokens(per_hour))
    return numbers


def timeline(outcome: Outcome) -> dict[str, list[float]]:
    """Columns of the same length."""
    names = ("time", "ready", "starting", "desired", "queue", "running")
    return {name: [getattr(moment, name) for moment in outcome.timeline] for name in names}


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.1f} s"
