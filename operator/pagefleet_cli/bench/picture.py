"""Draws a benchmark's latencies into an SVG, PNG or PDF file. Needs matplotlib (the `bench` extra), and only here."""

from __future__ import annotations

from pathlib import Path

from pagefleet_cli.base.errors import CommandError
from pagefleet_cli.bench.report import TITLES
from pagefleet_cli.bench.result import SIGNALS, values
from pagefleet_cli.bench.run import Run

KINDS = (".svg", ".png", ".pdf")


def check(path: Path) -> None:
    """Check --plot before the load starts: a run is too expensive to lose its picture. Raises CommandError."""
    if path.suffix not in KINDS:
        raise CommandError(f"--plot: {path.name} must end in {', '.join(KINDS)}")
    if not path.absolute().parent.is_dir():
        raise CommandError(f"--plot: there is no folder {path.absolute().parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise CommandError("--plot needs matplotlib: pip install 'pagefleet[bench]'") from error


def draw(path: Path, run: Run, before: Run | None, title: str) -> None:
    """Draw the cumulative share of requests over the latency for each signal; the earlier run is dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    for axes, signal in zip(figure.subplots(1, len(SIGNALS)), SIGNALS, strict=True):
        for one, style, label in ((before, "--", "before"), (run, "-", "now")):
            latencies = values(one.samples, signal) if one else []
            if latencies:
                shares = [(rank + 1) / len(latencies) for rank in range(len(latencies))]
                axes.step([1000 * value for value in latencies], shares, style, where="post", label=label)
        axes.set(title=TITLES[signal], xlabel="ms", ylabel="share of requests", ylim=(0, 1))
        if axes.lines:
            axes.set_xscale("log")
            axes.legend(loc="lower right")
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    try:
        figure.savefig(path)
    except OSError as error:
        raise CommandError(f"--plot: {path} cannot be written: {error.strerror or error}") from error
