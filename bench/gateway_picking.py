"""Picking quality: time to the first token under the gateway's picker, round robin and llm-d's published scoring.

    python bench/gateway_picking.py [--quick] [--check]

A discrete-event simulation (bench/gatewaybench): eight engines with KV limits and prefix caches, shared system
prompts, lognormal lengths, several loads and seeds; virtual time, so the figures do not depend on the machine.
`--check` exits 1 unless, at every load, ours has a p95 <= 0.7 x round robin and <= 0.9 x the published scoring (means
over the seeds).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.gatewaybench.simulation import compare

RATES = (60.0, 90.0, 120.0, 140.0)  # requests a second over the eight engines


def main() -> int:
    parser = argparse.ArgumentParser(description="Picking quality, simulated.")
    parser.add_argument("--quick", action="store_true", help="one load, two seeds")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    arguments = parser.parse_args()
    rates, seeds, count = ((120.0,), (1, 2), 2000) if arguments.quick else (RATES, range(1, 6), 4000)
    missed = False
    print(f"{'requests/s':>10}  {'policy':<12} {'TTFT p50':>9} {'TTFT p95':>9} {'cached':>7}")
    for rate in rates:
        runs = [compare(count, rate, seed) for seed in seeds]
        p95 = {name: mean(run[name].p95 for run in runs) for name in runs[0]}
        for name in runs[0]:
            p50, hits = mean(run[name].p50 for run in runs), mean(run[name].hit_rate for run in runs)
            print(f"{rate:>10.0f}  {name:<12} {p50 * 1e3:>6.0f} ms {p95[name] * 1e3:>6.0f} ms {hits:>7.0%}")
        robin, published = p95["pagefleet"] / p95["round robin"], p95["pagefleet"] / p95["llm-d 2/2/3"]
        print(f"{'':>10}  p95: {robin:.2f} x round robin (<= 0.70), {published:.2f} x llm-d 2/2/3 (<= 0.90)")
        missed |= robin > 0.7 or published > 0.9
    return int(arguments.check and missed)


if __name__ == "__main__":
    raise SystemExit(main())
