"""Plots as SVG or PNG: replicas and queue over time, and accelerator-hours over attainment.

matplotlib is needed (extra `plots`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pagefleet_simulator.results.outcome import Outcome


class PlotsMissing(RuntimeError):
    """matplotlib is not installed."""


def draw(outcomes: Sequence[Outcome], path: Path, title: str) -> None:
    """The format is the path's suffix. Raises PlotsMissing."""
    try:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotsMissing("plots need matplotlib: pip install 'pagefleet[plots]'") from error
    figure = Figure(figsize=(11, 1.9 * len(outcomes) + 0.8), layout="constrained")
    FigureCanvasSVG(figure)
    figure.suptitle(title)
    rows: Any = figure.subplots(len(outcomes), 1, sharex=True, squeeze=False)
    highest = max((moment.desired for outcome in outcomes for moment in outcome.timeline), default=1)
    for axis, outcome in zip(rows[:, 0], outcomes, strict=True):
        hours = [moment.time / 3600 for moment in outcome.timeline]
        axis.fill_between(hours, [moment.ready for moment in outcome.timeline], step="post", alpha=0.35, color="C0")
        axis.step(hours, [moment.desired for moment in outcome.timeline], where="post", color="C0", lw=0.9)
        axis.set_ylim(0, highest * 1.08)
        axis.set_ylabel(f"{outcome.scaler}\nreplicas")
        queue = axis.twinx()
        queue.plot(hours, [moment.queue for moment in outcome.timeline], color="C3", lw=0.8)
        queue.set_ylim(bottom=0)
        queue.set_ylabel("queue", color="C3")
        axis.set_title(f"{outcome.accelerator_hours:.1f} accelerator-hours", loc="right", fontsize=8)
    rows[-1, 0].set_xlabel("hours")
    figure.savefig(path)


def frontiers(rows: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Accelerator-hours over the share of requests that missed the objective, a panel for each trace; a row has
    `scaler`, `attainment`, `hours`. Raises PlotsMissing."""
    try:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotsMissing("plots need matplotlib: pip install 'pagefleet[plots]'") from error
    figure = Figure(figsize=(11, 3.2 * math.ceil(len(rows) / 3)), layout="constrained")
    FigureCanvasSVG(figure)
    panels: Any = figure.subplots(math.ceil(len(rows) / 3), 3, squeeze=False)
    scalers = list(dict.fromkeys(row["scaler"] for listed in rows.values() for row in listed))
    for axis, (trace, listed) in zip(panels.flat, rows.items(), strict=False):
        for number, scaler in enumerate(scalers):
            mine = sorted((row for row in listed if row["scaler"] == scaler), key=lambda row: row["hours"])
            missed = [max(0.01, 100 * (1 - row["attainment"])) for row in mine]
            mark = "*" if scaler == "ours" else "o"
            axis.plot(
                missed, [row["hours"] for row in mine], mark + "-", color=f"C{number}", label=scaler, lw=0.8, ms=5
            )
        axis.set_xscale("log")
        axis.set_title(trace)
        axis.set_xlabel("% of requests that missed the objective")
        axis.set_ylabel("accelerator-hours")
    panels.flat[0].legend(fontsize=7)
    figure.savefig(path)
