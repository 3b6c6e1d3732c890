"""A trace as a flow: arrivals and mean lengths in steps of STEP seconds. Data for the simulation of flows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pagefleet_simulator.results.outcome import Floats

STEP = 2.0


@dataclass(frozen=True)
class Flow:
    """A trace as numbers per STEP: arrivals, and the means of what runs. `context` is the mean KV of a running
    sequence in tokens (long answers run longer: E[o(p + o/2)] / E[o])."""

    arrivals: Floats
    prompt: Floats
    output: Floats
    context: Floats

    @property
    def seconds(self) -> float:
        return len(self.arrivals) * STEP


def flow(at: Floats, prompts: Floats, outputs: Floats, seconds: float, mean_over: float = 600.0) -> Flow:
    """Lengths are means over `mean_over` seconds; the trace's means where nothing arrives."""
    steps = math.ceil(seconds / STEP)
    arrivals = np.bincount((at / STEP).astype(int), minlength=steps)[:steps].astype(float)
    bucket = (at / mean_over).astype(int)
    count = np.bincount(bucket, minlength=math.ceil(seconds / mean_over) + 1).astype(float)

    def mean(values: Floats) -> Floats:
        overall = float(values.mean()) if len(values) else 1.0
        total = np.bincount(bucket, weights=values, minlength=len(count))
        means = np.where(count > 0, total / np.maximum(count, 1), overall)
        return np.asarray(means[(np.arange(steps) * STEP / mean_over).astype(int)])

    output = mean(outputs)
    return Flow(arrivals, mean(prompts), output, mean(outputs * (prompts + outputs / 2)) / output)
