"""Replicas and queue over time, a row for each scaler, as SVG or PNG. Needs matplotlib (extra `plots`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pagefleet_simulator.outcome import Outcome


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
