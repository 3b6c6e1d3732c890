"""A benchmark as a person reads it: percentile table, errors by kind, distributions in the terminal. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pagefleet_cli.base.words import milliseconds, span
from pagefleet_cli.bench.baseline import Summary
from pagefleet_cli.bench.compare import (
    CONFIDENCE,
    Difference,
    Finding,
    difference,
    difference_to,
    failures,
    needed,
    sentence,
    throughput,
    throughput_to,
)
from pagefleet_cli.bench.profile import Profile
from pagefleet_cli.bench.result import SIGNALS, errors, quantile, series, tokens_per_second, values
from pagefleet_cli.bench.run import Run

QUANTILES = (0.5, 0.9, 0.95, 0.99)
COMPARED = (0.5, 0.95)
TITLES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "e2e"}
ROWS, WIDTH = 12, 20
LATE_SHARE = 0.1  # a client later than this share of the median TTFT measures itself
COLOURS = {
    Finding.FASTER: "green",
    Finding.SLOWER: "red",
    Finding.SAME: "",
    Finding.UNKNOWN: "yellow",
    Finding.MORE: "green",
    Finding.LESS: "red",
}


def report(run: Run, profile: Profile) -> RenderableType:
    parts: list[RenderableType] = [summary(run, profile), percentiles(run)]
    if run.failed_endpoints:
        failed = Table("ENDPOINT", "FAILED", box=None)
        for path, cause in run.failed_endpoints.items():
            failed.add_row(Text(path, "red"), Text(cause))
        parts.append(failed)
    kinds = errors(run.samples)
    if kinds:
        table = Table("ERROR", "REQUESTS", "SHARE", box=None)
        for kind, count in kinds.items():
            table.add_row(Text(kind, "red"), str(count), f"{count / len(run.samples):.1%}")
        parts.append(table)
    plots = [plot(TITLES[signal], values(run.samples, signal)) for signal in SIGNALS if values(run.samples, signal)]
    if plots:
        parts.append(Columns(plots, padding=(0, 3)))
    return Group(*(item for part in parts for item in (part, Text(""))))


def summary(run: Run, profile: Profile) -> Text:
    """Count the requests, failures and tokens; warn when the client itself was too slow."""
    done = [sample for sample in run.samples if not sample.error]
    late = max((sample.late for sample in run.samples), default=0.0)
    text = Text(
        f"{len(run.samples)} of {profile.requests} requests in {span(run.seconds)} (planned rate {profile.rate:g}/s), "
        f"{len(run.samples) - len(done)} failed; {tokens_per_second(run):.1f} output tokens/s; "
        f"prompts {_mean([one.prompt_tokens for one in done])} and answers {_mean([one.output_tokens for one in done])} "
        f"tokens on average; sent at most {milliseconds(late)} late"
    )
    if run.cut:
        text.append("\nstopped before the end", "yellow")
    typical = quantile(values(run.samples, "ttft"), 0.5)
    if typical is not None and late > max(0.005, LATE_SHARE * typical):
        text.append(
            "\nthis client sent its requests late: part of the latency is its own (is this machine busy?)", "yellow"
        )
    return text


def percentiles(run: Run) -> Table:
    table = Table("LATENCY", "REQUESTS", "MEAN", *(f"P{round(100 * q):d}" for q in QUANTILES), "MAX", box=None)
    for signal in SIGNALS:
        latencies = values(run.samples, signal)
        mean = sum(latencies) / len(latencies) if latencies else None
        cells = [milliseconds(quantile(latencies, q)) for q in (*QUANTILES, 1.0)]
        table.add_row(TITLES[signal], str(len(latencies)), milliseconds(mean), *cells)
    return table


def plot(title: str, ordered: Sequence[float], rows: int = ROWS, width: int = WIDTH) -> Text:
    """A histogram on a logarithmic axis: one row for each bin with its upper end and how many lie in it."""
    low, high = max(ordered[0], 1e-6), max(ordered[-1], 1e-6)
    step = (math.log(high / low) or 1e-9) / rows
    counts = [0] * rows
    for value in ordered:
        counts[min(rows - 1, max(0, int(math.log(max(value, low) / low) / step)))] += 1
    largest, lines = max(counts), []
    for index, count in enumerate(counts):
        end = low * math.exp(step * (index + 1))
        bar = "#" * math.ceil(width * count / largest)
        lines.append(f"{milliseconds(end):>9} {bar:<{width}} {count:>4}")
    return Text(f"{title}\n" + "\n".join(lines), no_wrap=True)


def compared(before: Run | Summary, after: Run) -> list[tuple[str, Difference]]:
    """The differences of each signal at each compared quantile."""
    return [(signal, _one(before, after, signal, q)) for signal in SIGNALS for q in COMPARED]


def _one(before: Run | Summary, after: Run, signal: str, q: float) -> Difference:
    now = series(after.samples, signal)
    if isinstance(before, Run):
        return difference(series(before.samples, signal), now, q)
    enough = before.requests - before.failed >= needed(q)
    bounds = before.bounds(signal, q, (1 - CONFIDENCE) / 2) if enough else None
    return difference_to(before.quantile(signal, q), bounds, now, q)


def comparison(
    before: Run | Summary, after: Run, name: str, unlike: Sequence[str], notes: Sequence[str] = ()
) -> RenderableType:
    """`unlike`: one sentence for each setting in which the earlier run differs; `notes`: for each limit of what is known of it."""
    lines = [Text(f"compared with {name}", "bold"), *(Text(note, "yellow") for note in notes)]
    lines += [Text(f"the runs differ: {what}", "yellow") for what in unlike]
    for signal, change in compared(before, after):
        lines.append(Text(sentence(TITLES[signal], change), COLOURS[change.finding]))
    speed = throughput(before, after) if isinstance(before, Run) else throughput_to(before.tokens_per_second, after)
    lines.append(Text(_throughput_sentence(speed), COLOURS[speed.finding]))
    old, new = _failed(before), _failed(after)
    p, finding = failures(old, new)
    colour = {Finding.MORE: "red", Finding.LESS: "green"}.get(finding, "")
    lines.append(
        Text(f"errors: {old[0]} of {old[1]} then, {new[0]} of {new[1]} now: {finding.value} (p = {p:.2g})", colour)
    )
    return Group(*lines)


def _failed(run: Run | Summary) -> tuple[int, int]:
    """(failed, all) requests."""
    if isinstance(run, Run):
        return sum(bool(one.error) for one in run.samples), len(run.samples)
    return run.failed, run.requests


def _throughput_sentence(speed: Difference) -> str:
    if speed.change is None or speed.low is None or speed.high is None or speed.before is None or speed.after is None:
        return f"output tokens/s: {Finding.UNKNOWN.value}"
    interval = f"{speed.low:+.0%} .. {speed.high:+.0%} with {CONFIDENCE:.0%} confidence"
    return f"output tokens/s: {speed.before:.1f} then, {speed.after:.1f} now ({interval}): {speed.finding.value}"


def _mean(numbers: Sequence[int]) -> str:
    return f"{sum(numbers) / len(numbers):.0f}" if numbers else "-"
