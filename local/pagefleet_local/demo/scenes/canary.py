"""Scene: a good new revision goes through the canary steps under load and is promoted; the split is counted."""

from __future__ import annotations

import time
from collections.abc import Callable

from pagefleet_local.demo.load import Sample, binomial_interval
from pagefleet_local.demo.stage import Stage
from pagefleet_local.fleet.view import View

TITLE = "A good new revision: 25 % -> 50 % -> 100 % under load, judged on requests, promoted"
RATE = 5.0
# The gateway's watch delivers a new weight within this; requests around a change are not counted.
SETTLE = 1.5
GOOD = ["--max-num-seqs=8", "--max-num-batched-tokens=256"]


async def play(stage: Stage) -> None:
    narrator, old = stage.narrator, (await stage.view()).stable
    stage.load.rate, began = RATE, time.time()
    narrator.say(f"load: {RATE:g} streamed chat requests/s through the gateway, open loop")
    await stage.edit(args=GOOD)
    weights = await follow(stage, lambda v: v.stable not in ("", old) and not v.canary, timeout=240)
    view = await stage.view()
    new = view.stable
    stage.notes["args"] = GOOD
    narrator.say(f"promoted: stable is now {new} (was {old})")
    rows = []
    for share, (start, end) in weights.items():
        samples = [s for s in stage.load.since(start + SETTLE, end - SETTLE) if s.status == 200]
        hits = sum(s.revision == new for s in samples)
        low, high = binomial_interval(len(samples), share / 100)
        rows.append((share, len(samples), hits, low, high))
    narrator.table(
        "the split at the gateway",
        ("declared", "requests", "to the canary", "binomial 99 % interval"),
        [(f"{share} %", str(n), str(k), f"{low}..{high}") for share, n, k, low, high in rows],
    )
    for share, _, hits, low, high in rows:
        narrator.check(low <= hits <= high, f"{share} %: {hits} canary requests lie within {low}..{high}")
    narrator.check({25, 50} <= set(weights), "both declared steps appeared in .status.traffic")
    whole(stage, stage.load.since(began), "the rollout")


async def follow(stage: Stage, done: Callable[[View], bool], timeout: float) -> dict[int, tuple[float, float]]:
    """Watch until `done`. Return {canary weight: (first time, last time)} of the weights strictly between 0 and 100."""
    weights: dict[int, tuple[float, float]] = {}

    def look(view: View) -> bool:
        weight = view.weights.get(view.canary, 0) if view.canary else 0
        if 0 < weight < 100:
            first, _ = weights.get(weight, (time.time(), 0.0))
            weights[weight] = (first, time.time())
        return done(view)

    await stage.watch(look, timeout=timeout, what="the rollout ends")
    return weights


def whole(stage: Stage, samples: list[Sample], what: str) -> None:
    """Every request of `samples` got its whole answer."""
    bad = [s for s in samples if s.status != 200 or s.truncated or s.error]
    for sample in bad[:3]:
        stage.narrator.output(f"{sample.status} {sample.error or 'no finish_reason'} ({sample.revision})")
    stage.narrator.check(not bad, f"{len(samples)} requests during {what}: none failed, no stream cut")
