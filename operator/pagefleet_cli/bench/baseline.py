"""Reads a report of guidellm or inference-perf as the run to compare with.

guidellm keeps every request, so its report becomes a run. inference-perf's lifecycle reports hold percentiles only: a verdict on them
rests on those, on the number of requests, and on the assumption that the requests were independent.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

from pagefleet_cli.base.errors import CommandError
from pagefleet_cli.bench.requests import Sample
from pagefleet_cli.bench.run import Run

SUMMARY = "summary_lifecycle_metrics.json"
SENT = "latencies of that report begin when a request was sent, not when it was meant to be sent"
LATENCIES = {"ttft": "time_to_first_token", "tpot": "time_per_output_token", "e2e": "request_latency"}


@dataclass(frozen=True)
class Summary:
    """What is known of a run by percentiles: `curves` by signal, (share, seconds) ascending from the minimum to the maximum."""

    curves: Mapping[str, Sequence[tuple[float, float]]]
    requests: int
    failed: int
    tokens_per_second: float

    def quantile(self, signal: str, q: float) -> float | None:
        """Between two percentiles a straight line; None without any."""
        curve = self.curves.get(signal, ())
        for (low, below), (high, above) in itertools.pairwise(curve):
            if low <= q <= high:
                return below + (above - below) * (q - low) / (high - low)
        return None

    def bounds(self, signal: str, q: float, tail: float) -> tuple[float, float] | None:
        """An interval of the quantile that misses it with a probability of `tail` at each end (normal approximation of the ranks;
        Conover, Practical Nonparametric Statistics, 1999, section 3.2), None without percentiles on both sides of it."""
        count = max(1, self.requests - self.failed)
        width = -NormalDist().inv_cdf(tail) * math.sqrt(q * (1 - q) / count)
        low, high = self.quantile(signal, max(0.0, q - width)), self.quantile(signal, min(1.0, q + width))
        return None if low is None or high is None else (low, high)


@dataclass(frozen=True)
class Baseline:
    """`notes`: what a reader must know of the report, one sentence each."""

    name: str
    before: Run | Summary
    notes: tuple[str, ...]


def read(path: Path) -> Baseline:
    """Read guidellm's JSON report, or inference-perf's lifecycle report or the folder of it. Raises CommandError."""
    file = path / SUMMARY if path.is_dir() else path
    try:
        document = json.loads(file.read_text())
        if "benchmarks" in document:
            return _guidellm(document, file)
        if "successes" in document:
            return _inference_perf(document, file)
    except OSError as error:
        raise CommandError(f"--compare: {file}: {error.strerror or error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CommandError(f"--compare: {file} cannot be read as a report: {error!r}") from error
    raise CommandError(f"--compare: {file} is a report of neither guidellm (benchmarks) nor inference-perf (successes)")


def _inference_perf(document: dict[str, Any], file: Path) -> Baseline:
    good, bad = document["successes"], document["failures"]
    latency = good["latency"]
    curves = {signal: _curve(latency[name]) for signal, name in LATENCIES.items() if latency.get(name)}
    summary = Summary(
        curves, good["count"] + bad["count"], bad["count"], float(good["throughput"]["output_tokens_per_sec"])
    )
    missing = [
        f"{LATENCIES[signal]} is missing (was api.streaming false?)" for signal in LATENCIES if signal not in curves
    ]
    rest = (
        "the report holds percentiles only: intervals take its requests for independent, and its throughput for exact"
    )
    return Baseline(f"{file} of inference-perf", summary, (rest, SENT, *missing))


def _curve(shares: Mapping[str, float]) -> list[tuple[float, float]]:
    named = {"min": 0.0, "median": 0.5, "max": 1.0}
    points = [(named[key], value) for key, value in shares.items() if key in named]
    points += [(float(key[1:]) / 100, value) for key, value in shares.items() if key[0] == "p" and key[1:2].isdigit()]
    return sorted((share, float(value)) for share, value in points)


def _guidellm(document: dict[str, Any], file: Path) -> Baseline:
    benchmarks = document["benchmarks"]
    if len(benchmarks) != 1:
        raise CommandError(
            f"--compare: {file} has {len(benchmarks)} benchmarks, and one is compared: run guidellm with one rate"
        )
    requests, totals = benchmarks[0]["requests"], benchmarks[0]["metrics"]["request_totals"]
    start, end = benchmarks[0]["start_time"], benchmarks[0]["end_time"]
    good = [_sample(one, start, "") for one in requests["successful"]]
    bad = [_sample(one, start, one["info"].get("error") or "errored") for one in requests["errored"]]
    notes = [] if all(one["info"]["timings"].get("targeted_start") for one in requests["successful"]) else [SENT]
    if totals["incomplete"]:
        notes.append(f"{totals['incomplete']} requests were incomplete when that run ended, and are left out")
    kept = (len(good), len(bad))
    if kept != (totals["successful"], totals["errored"]):
        notes.append(
            f"the report lists {kept[0]} good and {kept[1]} failed requests of {totals['successful']} and "
            f"{totals['errored']} in its totals: the listed ones are compared"
        )
    samples = tuple(sorted((*good, *bad), key=lambda sample: sample.at))
    return Baseline(f"{file} of guidellm", Run(samples, end - start), tuple(notes))


def _sample(request: Mapping[str, Any], start: float, error: str) -> Sample:
    """A request by its timestamps (seconds since the epoch). guidellm's inter-token latency is our TPOT: without the first token."""
    times = request["info"]["timings"]
    sent = times.get("request_start") or times.get("targeted_start") or start
    intended = times.get("targeted_start") or sent
    first, end = times.get("first_token_iteration"), times.get("request_end") or times.get("resolve_end") or sent
    gap = request.get("inter_token_latency_ms")
    return Sample(
        at=intended - start,
        late=sent - intended,
        ttft=None if first is None else first - intended,
        tpot=None if gap is None else gap / 1000,
        e2e=end - intended,
        prompt_tokens=request.get("prompt_tokens") or 0,
        output_tokens=request.get("output_tokens") or 0,
        error=error,
    )
