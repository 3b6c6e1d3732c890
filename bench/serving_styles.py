"""Static batches, continuous batching with reserved memory, and paged serving, compared on one engine.

    python bench/serving_styles.py [--quick] [--check] [--json result.json] [--png docs/explanation/serving_styles.png]

The same model, kernels, requests and KV memory (8,192 tokens) three times; only the style differs, so a difference of
the numbers has no other cause:

- `static`: batches, each held until its longest answer ends; a whole context reserved for every sequence (what a loop
  around transformers' generate does);
- `reserved`: continuous batching at every token, a whole context reserved for every sequence (Orca, OSDI 2022; the
  servers of TGI's first generation): one page is as long as the context;
- `paged`: continuous batching over pages of 16 tokens (Kwon et al., SOSP 2023).

Claims (`--check`): paged wastes less than 4 % of the slots that it holds, and gives more tokens/s than both others. What runs in
a round alternates, and medians of the rounds are shown.
"""

from __future__ import annotations

import itertools
import json as json_
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from cpubench import float_model, workload
from cpubench.measures import percentile
from rich.console import Console
from rich.table import Table

from pagefleet_engine.core.requests import EngineConfig, EngineRequest, SamplingParams
from pagefleet_engine.model.checkpoint.source import resolve
from pagefleet_engine.model.text import tokenizer
from pagefleet_engine.runner.cpu.engine import Engine

TEXT = Path(__file__).parent / "cpubench/text.txt"
BUDGET, MAX_CONTEXT, PAGE = 8192, 1024, 16  # tokens of KV memory, of a context, of a page
BASE = EngineConfig(model=float_model.URI, quantization="int8", max_model_len=MAX_CONTEXT, prefix_caching=False)
STYLES = {
    "static": replace(BASE, batching="static", page_size=MAX_CONTEXT, num_pages=BUDGET // MAX_CONTEXT + 1),
    "reserved": replace(BASE, page_size=MAX_CONTEXT, num_pages=BUDGET // MAX_CONTEXT + 1),
    "paged": replace(BASE, page_size=PAGE, num_pages=BUDGET // PAGE + 1),
}


@dataclass(frozen=True)
class Measured:
    """One run: output tokens/s, milliseconds, share of the held KV slots that nothing was written to (0 to 1), and
    sequences served at once, over the steps."""

    tokens_per_s: float
    ttft_p50: float
    ttft_p95: float
    itl_p50: float
    itl_p95: float
    waste: float
    together: float


def serve(config: EngineConfig, requests: Sequence[workload.Request]) -> Measured:
    """All requests at their times, in process; every output is stamped when its step ends."""
    engine, begin = Engine(config), time.perf_counter()
    coming = [(one.at, EngineRequest(str(index), one.prompt, SamplingParams(one.output, ignore_eos=True), one.at)) for index, one in enumerate(requests)]  # fmt: skip
    sent = {request.request_id: at for at, request in coming}
    stamps: dict[str, list[float]] = {name: [] for name in sent}
    held = used = steps = together = 0
    while coming or engine.has_work():
        now = time.perf_counter() - begin
        while coming and coming[0][0] <= now:
            engine.add(coming.pop(0)[1])
        if not engine.has_work():
            time.sleep(max(0.0, coming[0][0] - now))
            continue
        outputs, stats = engine.step(now), engine.stats()
        held, used = held + stats.slots_held, used + stats.slots_used
        steps, together = steps + 1, together + stats.running
        for output in outputs:
            stamps[output.request_id] += [time.perf_counter() - begin] * len(output.token_ids)
    first = [1000 * (times[0] - sent[name]) for name, times in stamps.items()]
    gaps = [1000 * (b - a) for times in stamps.values() for a, b in itertools.pairwise(times)]
    tokens, end = sum(map(len, stamps.values())), max(times[-1] for times in stamps.values())
    return Measured(
        tokens_per_s=tokens / (end - min(sent.values())),
        ttft_p50=percentile(first, 50),
        ttft_p95=percentile(first, 95),
        itl_p50=percentile(gaps, 50),
        itl_p95=percentile(gaps, 95),
        waste=1 - used / held,
        together=together / steps,
    )


def middle(runs: Sequence[Measured]) -> Measured:
    return Measured(**{name: statistics.median(getattr(run, name) for run in runs) for name in asdict(runs[0])})


def show(console: Console, title: str, results: Mapping[str, Measured]) -> None:
    table = Table("style", "output tok/s", "TTFT p50 / p95 ms", "ITL p50 / p95 ms", "KV wasted", "sequences at once", title=title)  # fmt: skip
    for name, one in results.items():
        table.add_row(
            name,
            f"{one.tokens_per_s:.0f}",
            f"{one.ttft_p50:,.0f} / {one.ttft_p95:,.0f}",
            f"{one.itl_p50:.0f} / {one.itl_p95:.0f}",
            f"{one.waste:.1%}",
            f"{one.together:.1f}",
        )
    console.print(table)


def draw(results: Mapping[str, Mapping[str, Measured]], path: Path) -> None:
    """A row of bars for each load: throughput, p95 of the first token, p95 between tokens, KV waste."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = (("tokens_per_s", "output tokens/s", 1.0), ("ttft_p95", "TTFT p95, s", 1e-3), ("itl_p95", "ITL p95, ms", 1.0), ("waste", "KV slots wasted, %", 100.0))  # fmt: skip
    figure, axes = plt.subplots(len(results), len(columns), figsize=(12, 2.6 * len(results)), squeeze=False)
    for row, (load, styles) in zip(axes, results.items(), strict=True):
        for axis, (name, label, unit) in zip(row, columns, strict=True):
            bars = axis.bar(list(styles), [getattr(one, name) * unit for one in styles.values()], color=("#9aa5b1", "#5b8db8", "#1f7a4d"))  # fmt: skip
            axis.bar_label(bars, fmt="%.3g", fontsize=8)
            axis.set_title(label, fontsize=9)
            axis.margins(y=0.18)
        row[0].set_ylabel(load, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="16 requests, one round: about a minute")] = False,
    check: Annotated[bool, typer.Option("--check", help="end with 1 when a claim does not hold")] = False,
    rate: Annotated[float, typer.Option(help="requests a second where they do not all come at once")] = 2.0,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    json: Annotated[Path | None, typer.Option(help="write the medians to this file")] = None,
    png: Annotated[Path | None, typer.Option(help="draw the medians into this file (needs matplotlib)")] = None,
) -> None:
    """Three ways to serve the same requests, on this machine's CPU."""
    console, count = Console(), 16 if quick else 64
    text = tokenizer.load(resolve(float_model.URI)).encode(TEXT.read_text(), add_special_tokens=False)
    loads = {"all at once": 0.0, f"{rate:g} requests/s": rate}
    runs: dict[str, dict[str, list[Measured]]] = {load: {style: [] for style in STYLES} for load in loads}
    for part in range(1 if quick else rounds):
        requests = workload.make(text, count, 1, part)
        for load, per_second in loads.items():
            spaced = workload.spread(requests, per_second, 1) if per_second else requests
            for style, config in STYLES.items():
                console.print(f"round {part + 1}, {load}: {style} ...", style="dim")
                runs[load][style].append(serve(config, spaced))
    results = {load: {style: middle(several) for style, several in styles.items()} for load, styles in runs.items()}
    for load, styles in results.items():
        show(console, load, styles)
    if json:
        json.write_text(json_.dumps({load: {style: asdict(one) for style, one in styles.items()} for load, styles in results.items()}, indent=1) + "\n")  # fmt: skip
    if png:
        draw(results, png)
    at_once = results["all at once"]
    short = [name for name in ("static", "reserved") if at_once["paged"].tokens_per_s <= at_once[name].tokens_per_s]
    for name in short:
        console.print(f"MISSED  paged gives no more tokens/s than {name}")
    if at_once["paged"].waste >= 0.04:
        console.print(f"MISSED  paged wastes {at_once['paged'].waste:.1%} (< 4 %)")
    if check and (short or at_once["paged"].waste >= 0.04):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
