"""Measures the time from the onset of a regression to the rollback, by the operator's own guard on simulated traffic: virtual time, the same on
every machine. bench/rollout_guard.py describes the traffic and has more figures of this kind."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from statistics import median
from typing import Any

from rollout_guard import OURS, Run, run
from rolloutbench.trace import Traffic

SHARE, FACTORS, RATES = 0.5, (1.5, 2.0, 3.0), (10.0, 100.0)


def measure(rollouts: int) -> Mapping[str, Any]:
    """Measure by requests per second, and by how many times worse the canary's p95 is."""
    shown: dict[str, Any] = {"rollouts": rollouts, "share": SHARE}
    with multiprocessing.Pool(2) as pool:
        for rate in RATES:
            for factor in FACTORS:
                traffic = Traffic(rate=rate, share=SHARE, worse=factor, seconds=3600)
                results = pool.map(run, [Run(traffic, seed, others=False) for seed in range(rollouts)], chunksize=4)
                fired = [decision for one in results if (decision := one[OURS]) is not None]
                ordered = sorted(one.seconds for one in fired)
                shown[f"{rate:g}/s, {factor:g}x"] = {
                    "rolledBack": len(fired),
                    "requests": round(median(one.requests for one in fired)),
                    "seconds": round(median(ordered), 1),
                    "p99Seconds": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
                }
    return shown
