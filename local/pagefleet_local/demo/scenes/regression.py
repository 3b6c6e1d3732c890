"""Scene: a genuinely worse revision is caught by the p95 guard and rolled back by itself; re-applying it does not loop."""

from __future__ import annotations

import json
import time

from pagefleet_local.demo.load import quantile
from pagefleet_local.demo.scenes.canary import RATE, follow, whole
from pagefleet_local.demo.stage import NAME, NAMESPACE, Stage

TITLE = "A worse revision (no compiled operations, static batching): caught by the p95 guard, rolled back by itself"
WORSE = ["--kernels=reference", "--batching=static", "--max-num-seqs=1"]


async def play(stage: Stage) -> None:
    narrator, old = stage.narrator, (await stage.view()).stable
    stage.load.rate, began = RATE, time.time()
    # One replica each: on one small machine more of the slow ones would slow the stable down with them, and a
    # slowdown of both is no evidence. 20 %: the guard needs about a hundred requests of the canary.
    await stage.edit(most=1, first=20, args=WORSE)
    await follow(stage, lambda v: v.phase == "RolledBack", timeout=300)
    view = await stage.view()
    rejection = view.status["rejected"][-1]
    bad = rejection["hash"]
    narrator.say("status.rejected:")
    narrator.output(json.dumps(rejection, indent=1))
    narrator.say("status.rollout.verdict:")
    narrator.output(json.dumps(view.verdict, indent=1), limit=20)
    samples = [s for s in stage.load.since(began) if s.ttft is not None]
    narrator.table(
        "TTFT as the clients measured it",
        ("revision", "requests", "p50", "p95"),
        [
            (
                revision,
                str(len(values)),
                f"{1000 * quantile(values, 0.5):.0f} ms",
                f"{1000 * quantile(values, 0.95):.0f} ms",
            )
            for revision in (old, bad)
            if (values := [s.ttft for s in samples if s.revision == revision and s.ttft is not None])
        ],
    )
    narrator.check(rejection["reason"] == "LatencyRegression", f"revision {bad} was rejected for LatencyRegression")
    narrator.check(view.weights == {old: 100}, f"all traffic is back on {old}")
    narrator.check(view.condition("RolledBack")["status"] == "True", "condition RolledBack is True")
    events = await stage.kubectl.events(NAME, NAMESPACE, f"Rolled back {bad}")
    told = [line for line in events.splitlines() if f"Rolled back {bad}" in line]
    narrator.output("\n".join(told))
    narrator.check("p95" in told[0], "an Event RolledBack carries the verdict")
    narrator.say("the same spec applied again:")
    await stage.edit(args=WORSE)
    await stage.kubectl.run("annotate", "isvc", NAME, "-n", NAMESPACE, "--overwrite", f"demo/touched={time.time()}")
    until = time.monotonic() + 8
    await stage.watch(lambda _: time.monotonic() > until, timeout=30, what="eight quiet seconds")
    again = await stage.view()
    narrator.check(
        again.weights == {old: 100}
        and not again.canary
        and len(again.status["rejected"]) == len(view.status["rejected"]),
        "re-applying the rejected spec starts nothing",
    )
    whole(stage, stage.load.since(began), "the rollback")
