"""Medians over the rounds, and how they and their verdicts are shown: table, JSON, picture."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import peers
from rich.console import Console
from rich.table import Table

from cpubench.measures import Measured
from cpubench.systems import System, threads
from cpubench.targets import Ratio

R = TypeVar("R")  # a dataclass of numbers with the name of its `system`


def medians(runs: Sequence[R]) -> dict[str, R]:
    """Return by system one run's shape, with the median of every number over the rounds."""
    by_system: dict[str, list[Any]] = {}
    for run in runs:
        by_system.setdefault(getattr(run, "system"), []).append(run)  # noqa: B009 (R has no bound with fields)
    return {system: _median(same) for system, same in by_system.items()}


def _median(runs: Sequence[Any]) -> Any:
    numbers = [field.name for field in fields(runs[0]) if isinstance(getattr(runs[0], field.name), int | float)]
    return replace(runs[0], **{name: statistics.median(getattr(run, name) for run in runs) for name in numbers})


def show(console: Console, runs: Sequence[Measured], systems: Mapping[str, System]) -> None:
    middle = medians(runs)
    count = max(sum(run.system == name for run in runs) for name in middle)
    first = max(middle.values(), key=lambda run: run.requests)
    most = first.requests
    table = Table(
        title=f"{first.requests:.0f} requests at once, {first.prompt_tokens:.0f} prompt and {first.output_tokens:.0f} "
        f"output tokens; median of {count}"
    )
    table.add_column("system", no_wrap=True)
    for heading in ("output tok/s", "least - most", "TTFT p50", "p95 ms", "ITL p50", "p95 ms", "ready s", "RSS MiB",
                    "idle CPU %", "others' CPU %"):  # fmt: skip
        table.add_column(heading, justify="right")
    for name, run in middle.items():
        speeds = [other.tokens_per_s for other in runs if other.system == name]
        table.add_row(
            name, f"{run.tokens_per_s:.1f}", f"{min(speeds):.0f} - {max(speeds):.0f}",
            f"{run.ttft_p50:.0f}", f"{run.ttft_p95:.0f}", f"{run.itl_p50:.0f}", f"{run.itl_p95:.0f}",
            f"{run.ready_s:.1f}", f"{run.rss_mib:.0f}", f"{run.idle_cpu:.1f}", f"{run.others_cpu:.0f}",
        )  # fmt: skip
    console.print(table)
    for name in middle:
        fewer = middle[name].requests < most
        count_said = f"; the first {middle[name].requests:.0f} of the requests only" if fewer else ""
        console.print(f"  {name}: {systems[name].what}{count_said}", highlight=False)


def verdicts(console: Console, ratios: Sequence[Ratio]) -> None:
    for ratio in ratios:
        value = "not measured" if ratio.value is None else f"{ratio.value:.2f}{ratio.unit}"
        judged = "" if ratio.limit is None else f"target: {ratio.target}"
        if judged and ratio.value is not None:
            judged += ", [red]missed[/]" if ratio.missed else ", [green]met[/]"
        console.print(f"  {ratio.name}: {value}{f' ({judged})' if judged else ''}", highlight=False)


def machine() -> dict[str, str | int]:
    names = [row for row in Path("/proc/cpuinfo").read_text().splitlines() if row.startswith("model name")]
    return {"cpu": names[0].partition(":")[2].strip() if names else platform.machine(), "cores": threads()}


def write_json(
    path: Path,
    runs: Sequence[Any],
    settings: Mapping[str, object],
    systems: Sequence[System],
    ratios: Sequence[Ratio] = (),
) -> None:
    """`runs` are dataclasses of one kind, one for each round and system."""
    document = {
        "machine": machine(),
        "versions": peers.versions(),
        "settings": dict(settings),
        "commands": {system.name: [part.rpartition("/")[2] for part in system.command(0)] for system in systems},
        "environments": {system.name: _named(system.environment) for system in systems},
        "medians": {name: asdict(run) for name, run in medians(runs).items()},
        "ratios": [asdict(ratio) for ratio in ratios],
        "runs": [asdict(run) for run in runs],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def _named(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings without this machine's folders."""
    return {name: value.replace(str(peers.cache()), "~/.cache/pagefleet") for name, value in environment.items()}


def draw(path: Path, runs: Sequence[Measured]) -> None:
    """A picture of the medians. Raises ModuleNotFoundError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    middle = medians(runs)
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 3.6), constrained_layout=True)
    names = list(middle)
    colours = ["#2563eb" if name.startswith("pagefleet") else "#9ca3af" for name in names]
    for axis, field, title in zip(
        axes,
        ("tokens_per_s", "ttft_p95", "itl_p95"),
        ("output tokens/s (more is better)", "p95 TTFT, ms (less is better)", "p95 ITL, ms (less is better)"),
        strict=True,
    ):
        bars = axis.barh(names, [getattr(middle[name], field) for name in names], color=colours)
        axis.bar_label(bars, fmt="%.0f", padding=3)
        axis.set_title(title, fontsize=10)
        axis.invert_yaxis()
        axis.locator_params(axis="x", nbins=4)
        axis.margins(x=0.15)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
