"""Medians over the rounds, the ratios that the README names, and how they are shown: table, JSON, picture."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import peers
from rich.console import Console
from rich.table import Table

from cpubench.measures import Measured
from cpubench.systems import System, threads

VLLMS = ("vllm", "vllm-bf16", "vllm-bf16-ngram")


@dataclass(frozen=True)
class Ratio:
    """Our number over a peer's; `value` is None when one of the two was not measured. `most`: the limit is the largest allowed
    value (times between tokens), otherwise the least (output tokens/s)."""

    name: str
    value: float | None
    limit: float
    most: bool = False

    @property
    def missed(self) -> bool:
        return self.value is not None and (self.value > self.limit if self.most else self.value < self.limit)

    @property
    def target(self) -> str:
        return f"at {'most' if self.most else 'least'} {self.limit:.1f}x"


def medians(runs: Sequence[Measured]) -> dict[str, Measured]:
    """Return by system one run's shape, with the median of every number over the rounds."""
    by_system: dict[str, list[Measured]] = {}
    for run in runs:
        by_system.setdefault(run.system, []).append(run)
    return {system: _median(same) for system, same in by_system.items()}


def _median(runs: Sequence[Measured]) -> Measured:
    numbers = [field.name for field in fields(Measured) if field.name != "system"]
    return replace(runs[0], **{name: statistics.median(getattr(run, name) for run in runs) for name in numbers})


def ratios(middle: Mapping[str, Measured]) -> list[Ratio]:
    """Throughput must not be bought with streams that falter: the p95 between tokens is judged like the tokens/s."""
    speed = {system: run.tokens_per_s for system, run in middle.items()}
    gap = {system: run.itl_p95 for system, run in middle.items()}
    fastest = max((name for name in VLLMS if name in speed), key=lambda name: speed[name], default="")

    def ratio(
        values: Mapping[str, float], ours: str, theirs: str, name: str, limit: float, most: bool = False
    ) -> Ratio:
        known = ours in values and values.get(theirs)
        return Ratio(name, values[ours] / values[theirs] if known else None, limit, most)

    return [
        ratio(speed, "pagefleet", "vllm", "tokens/s, pagefleet / vllm (both float32)", 1.5),
        ratio(speed, "pagefleet", "transformers", "tokens/s, pagefleet / transformers, static batches", 5.0),
        ratio(speed, "pagefleet-int8", fastest, "tokens/s, pagefleet-int8 / the fastest of vLLM's", 3.0),
        ratio(speed, "pagefleet-int8", "llama", "tokens/s, pagefleet-int8 / llama (Q4_1)", 1.0),
        ratio(gap, "pagefleet", "vllm", "p95 between tokens, pagefleet / vllm (both float32)", 1.0, most=True),
        ratio(
            gap, "pagefleet-int8", fastest, "p95 between tokens, pagefleet-int8 / the fastest of vLLM's", 1.0, most=True
        ),
    ]


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
    for ratio in ratios(middle):
        if ratio.value is None:
            console.print(f"  {ratio.name}: not measured (target: {ratio.target})", highlight=False)
        else:
            verdict = "[red]missed[/]" if ratio.missed else "[green]met[/]"
            console.print(f"  {ratio.name}: {ratio.value:.2f}x (target: {ratio.target}, {verdict})", highlight=False)


def machine() -> dict[str, str | int]:
    names = [row for row in Path("/proc/cpuinfo").read_text().splitlines() if row.startswith("model name")]
    return {"cpu": names[0].partition(":")[2].strip() if names else platform.machine(), "cores": threads()}


def write_json(path: Path, runs: Sequence[Measured], settings: Mapping[str, object], systems: Sequence[System]) -> None:
    middle = medians(runs)
    document = {
        "machine": machine(),
        "versions": peers.versions(),
        "settings": dict(settings),
        "commands": {system.name: [Path(part).name for part in system.command(0)] for system in systems},
        "environments": {system.name: _named(system.environment) for system in systems},
        "medians": {name: asdict(run) for name, run in middle.items()},
        "ratios": [asdict(ratio) for ratio in ratios(middle)],
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
