"""The cost of a 90/10 split in prefix hits: the simulated fleet of ten engines, one revision or two. Virtual time.

Unsplit: ten engines of one revision. Split: nine of the stable revision and one canary, weights 90 and 10, the exact draw
and then the picker among the revision's own pods. A rollout's new revision has a cache of its own, and starts cold: the
first fifth of the trace is not counted, as in the other simulations.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from bench.gatewaybench.engine import Engine
from bench.gatewaybench.policies import Pagefleet
from bench.gatewaybench.simulation import simulate
from bench.gatewaybench.trace import trace

ENGINES, RATE = 10, 100.0


def split(quick: bool) -> dict[str, object]:
    seeds: Sequence[int] = (1,) if quick else (1, 2, 3)
    count = 2000 if quick else 6000
    rates: dict[str, list[float]] = {"unsplit": [], "split": []}
    for seed in seeds:
        arrivals = trace(count, RATE, seed)
        for name, revisions in (("unsplit", "a" * ENGINES), ("split", "a" * (ENGINES - 1) + "b")):
            policy = Pagefleet(ENGINES, seed, revisions)
            rates[name].append(simulate(policy, arrivals, [Engine() for _ in range(ENGINES)]).hit_rate)
    whole, parted = mean(rates["unsplit"]), mean(rates["split"])
    return {"unsplit": round(whole, 4), "split": round(parted, 4), "ratio": round(parted / whole, 4)}
