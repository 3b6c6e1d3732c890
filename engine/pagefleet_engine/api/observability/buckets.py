"""Prometheus histograms with many buckets that cost little: an observation is one bisection, a scrape a millisecond.

Text as in https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

# 1 ms to 60 s, 5 % apart: a p95 interpolated from them is within 2 % (tests/unit/engine/test_engine_api_metrics.py).
LATENCY = tuple(float(f"{0.001 * 1.05**step:.6g}") for step in range(227))
STEP = tuple(float(f"{0.0005 * 1.2**step:.6g}") for step in range(66))
TOKENS = tuple(float(2**step) for step in range(18))
BATCH = (1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 192.0, 256.0, 512.0)


# Those that the convention advises for gen_ai.server.time_to_first_token, .time_per_output_token and .request.duration.
OTEL_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
OTEL_TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
OTEL_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)


class Histogram:
    """One histogram with fixed labels and at most one more. The series of a label begin with its first value."""

    def __init__(
        self, name: str, text: str, fixed: Mapping[str, str], bounds: Sequence[float], label: str | None = None
    ) -> None:
        self._name, self._label = name, label
        self.label_names = (*fixed, *((label,) if label else ()))
        self._head = f"# HELP {name} {text}\n# TYPE {name} histogram\n"
        self._fixed = ",".join(f'{key}="{_escaped(value)}"' for key, value in fixed.items())
        self._bounds = tuple(bounds)
        self._written = [*(str(bound) for bound in self._bounds), "+Inf"]
        self._counts: dict[str, list[int]] = {} if label else {"": [0] * len(self._written)}
        self._sums: dict[str, float] = {} if label else {"": 0.0}

    def observe(self, value: float, count: int = 1, label: str = "") -> None:
        """`value`, `count` times."""
        if label not in self._counts:
            self._counts[label], self._sums[label] = [0] * len(self._written), 0.0
        self._counts[label][bisect_left(self._bounds, value)] += count
        self._sums[label] += value * count

    def text(self) -> str:
        """All series, each line with its end."""
        parts = [self._head]
        for label, counts in self._counts.items():
            labels = self._fixed + (f',{self._label}="{label}"' if self._label else "")
            start = f"{self._name}_bucket{{{labels},le="
            totals = list(accumulate(counts))
            parts += [f'{start}"{bound}"}} {total}\n' for bound, total in zip(self._written, totals, strict=True)]
            parts.append(f"{self._name}_count{{{labels}}} {totals[-1]}\n")
            parts.append(f"{self._name}_sum{{{labels}}} {self._sums[label]}\n")
        return "".join(parts)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
