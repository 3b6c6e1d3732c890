"""The result of a benchmark: quantiles, errors by kind, and the compact result of the load-test step. Pure."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pagefleet_cli.bench.requests import Sample
from pagefleet_cli.bench.run import Run
from pagefleet_contract import sketch
from pagefleet_operator.domain.spec.schema.guard_signals import GATEWAY_SIGNALS

SIGNALS = GATEWAY_SIGNALS
MAX_BYTES = 4096  # of a container's termination message
MAX_CAUSE = 256  # bytes of the cause of an endpoint's failure


def series(samples: Iterable[Sample], signal: str) -> list[float]:
    """The signal's values of the successful requests, in the order of the samples, in seconds."""
    latencies = (getattr(sample, signal) for sample in samples if not sample.error)
    return [value for value in latencies if value is not None]


def values(samples: Iterable[Sample], signal: str) -> list[float]:
    """The same, ascending."""
    return sorted(series(samples, signal))


def quantile(ordered: Sequence[float], q: float) -> float | None:
    """Nearest rank of ascending values; None when there are none."""
    return ordered[min(len(ordered), max(1, math.ceil(q * len(ordered)))) - 1] if ordered else None


def errors(samples: Iterable[Sample]) -> dict[str, int]:
    """Count the failed requests by kind, most frequent first."""
    return dict(Counter(sample.error for sample in samples if sample.error).most_common())


def tokens_per_second(run: Run) -> float:
    """Output tokens of the successful requests, per second of the run."""
    return sum(sample.output_tokens for sample in run.samples if not sample.error) / max(run.seconds, 1e-9)


def compact(run: Run) -> dict[str, Any]:
    """The load-test step's result. Histograms are `sketch`'s buckets, as fine as `MAX_BYTES` allow.

    When they do not fit, `coarse` neighbours are counted in the uppermost of them: a quantile read from the result is
    then too high by at most a factor of 1.02^(coarse - 1), never too low.
    """
    histograms = {signal: _histogram(values(run.samples, signal)) for signal in SIGNALS}
    coarse = 1
    while len(written(document := _document(run, histograms, coarse))) > MAX_BYTES:
        coarse += 1
    return document


def written(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _document(run: Run, histograms: Mapping[str, Mapping[int, int]], coarse: int) -> dict[str, Any]:
    document: dict[str, Any] = {
        "requests": len(run.samples),
        "errors": sum(bool(sample.error) for sample in run.samples),
        "seconds": round(run.seconds, 3),
        "outputTokensPerSecond": round(tokens_per_second(run), 3),
    }
    if run.failed_endpoints:
        document["failedEndpoints"] = {path: _clipped(cause) for path, cause in run.failed_endpoints.items()}
    if coarse > 1:
        document["coarse"] = coarse
    for signal, histogram in histograms.items():
        merged: dict[str, int] = {}
        for bucket, count in histogram.items():
            name = str(-(-bucket // coarse) * coarse)
            merged[name] = merged.get(name, 0) + count
        document[signal] = merged
    return document


def _clipped(cause: str) -> str:
    """The beginning that is at most MAX_CAUSE bytes as JSON, where a letter outside of ASCII is six bytes or twelve."""
    while len(json.dumps(cause)) > MAX_CAUSE:
        cause = cause[:-1]
    return cause


def _histogram(ordered: Sequence[float]) -> dict[int, int]:
    return dict(Counter(sketch.bucket_of(value) for value in ordered))
