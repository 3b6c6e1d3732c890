"""Scene: a revision passes every step, is promoted, and becomes slow afterwards: the watch rolls it back."""

from __future__ import annotations

import json
import time

from pagefleet_contract.names import REVISION_LABEL
from pagefleet_local.demo.faulty import WORN_FILE, wearing, worn_seconds
from pagefleet_local.demo.scenes.canary import RATE, whole
from pagefleet_local.demo.stage import NAMESPACE, Stage

TITLE = "A revision that becomes slow after its promotion: the watch rolls it back to the previous one"
STEPS = [{"weight": 50, "hold": "20s"}]
WATCH = {"watch": "15m", "keepPrevious": "15m"}


async def play(stage: Stage) -> None:
    narrator, old = stage.narrator, (await stage.view()).stable
    before = (await stage.view()).document
    stage.load.rate, began = RATE, time.time()
    document = wearing()
    rollout = document["spec"]["rollout"]
    rollout["steps"], rollout["afterPromotion"] = STEPS, WATCH
    document["spec"]["scaling"]["max"] = 1
    narrator.say(f"spec.rollout.afterPromotion: {json.dumps(WATCH)}")
    await stage.apply(document)
    view = await stage.watch(lambda v: v.stable not in ("", old) and not v.canary, timeout=240, what="it is promoted")
    new = view.stable
    narrator.check(view.weights == {new: 100}, f"revision {new} is as good as {old}: promoted")
    seconds = worn_seconds([sample.ttft for sample in stage.load.samples if sample.ttft is not None])
    await _wear_out(stage, new, seconds)
    narrator.say(f"now every answer of {new} begins {seconds:g} s later")
    onset = time.time()
    view = await stage.watch(lambda v: v.phase == "RolledBack", timeout=300, what="the watch rolls it back")
    narrator.say(f"rolled back {time.time() - onset:.0f} s after it became slow")
    rejection = view.status["rejected"][-1]
    narrator.say(rejection["message"])
    narrator.check(
        (rejection["hash"], rejection["reason"]) == (new, "LatencyRegression"),
        f"revision {new} was rejected for LatencyRegression after its promotion",
    )
    narrator.check(view.stable == old and view.weights == {old: 100}, f"revision {old} serves again, with all traffic")
    whole(stage, stage.load.since(began), "the promotion and the way back")
    narrator.say("the spec goes back to what serves:")
    await stage.restore(before)


async def _wear_out(stage: Stage, revision: str, seconds: float) -> None:
    pods = await stage.kubectl.list("pods", NAMESPACE, f"{REVISION_LABEL}={revision}")
    # Whole or not at all: the engine reads it at every request.
    code = f"import os; open({WORN_FILE + '.new'!r}, 'w').write('{seconds}'); os.rename({WORN_FILE + '.new'!r}, {WORN_FILE!r})"
    for pod in pods:
        await stage.kubectl.run("exec", "-n", NAMESPACE, pod["metadata"]["name"], "--", "python3", "-c", code)
