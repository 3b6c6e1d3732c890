"""Scene: a revision that fails a quarter of its requests is rolled back for its rate of errors.

Its answers are as fast as the others'. The gateway may send a failed request to another pod, so that its client never
knows; the guard counts the attempt that failed all the same.
"""

from __future__ import annotations

import time

from pagefleet_local.demo.faulty import FAILING_SHARE, failing
from pagefleet_local.demo.scenes.canary import RATE
from pagefleet_local.demo.stage import Stage

TITLE = "A revision with a bug: a quarter of its requests end with 500; the errors guard rolls it back"

STEPS = [{"weight": 50, "hold": "20s"}]  # half of the traffic, so that the guard has its evidence soon


async def play(stage: Stage) -> None:
    narrator, old = stage.narrator, (await stage.view()).stable
    before = (await stage.view()).document
    stage.load.rate, began = RATE, time.time()
    narrator.say(f"an engine that answers {FAILING_SHARE:.0%} of its requests with 500:")
    document = failing()
    document["spec"]["rollout"]["steps"] = STEPS
    await stage.apply(document)
    view = await stage.watch(lambda v: v.phase == "RolledBack", timeout=300, what="the errors roll it back")
    rejection = view.status["rejected"][-1]
    narrator.say(rejection["message"])
    narrator.check(rejection["reason"] == "ErrorRate", f"revision {rejection['hash']} was rejected for ErrorRate")
    narrator.check(view.weights == {old: 100}, f"all traffic is back on {old}")
    samples = stage.load.since(began)
    failed = sum(sample.status != 200 for sample in samples)
    narrator.say(f"{failed} of {len(samples)} requests of the clients failed meanwhile")
    narrator.say("the spec goes back to what serves:")
    await stage.restore(before)
