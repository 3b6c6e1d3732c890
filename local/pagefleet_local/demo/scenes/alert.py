"""Scene: a paging alert rolls back a bad revision that no latency guard can detect.

The third revision refuses every prompt longer than a few tokens with 400: fast, and not a server error, so p95 and
5xx look fine. Prometheus sees that the share of 4xx is far above the stable revision's, Alertmanager calls the operator's
webhook.
"""

from __future__ import annotations

import json
import time

from pagefleet_local.demo.monitoring import Monitoring
from pagefleet_local.demo.scenes.canary import RATE
from pagefleet_local.demo.stage import Stage, sample

TITLE = "A paging alert: Prometheus and Alertmanager roll a third revision back through the operator's webhook"


async def play(stage: Stage) -> None:
    narrator, old = stage.narrator, (await stage.view()).stable
    serving = stage.notes.get("args", sample()["spec"]["engine"]["args"])
    async with Monitoring(stage.fleet, narrator) as monitoring:
        await monitoring.scraping()
        stage.load.rate = RATE
        limits = {"promptTokens": 8, "outputTokens": 512, "queued": 128}
        narrator.say("the guard of this rollout does not judge refused requests: only the alert can find this revision")
        await stage.edit(args=serving, limits=limits, errors=False)
        await stage.watch(
            lambda v: bool(v.canary and v.weights.get(v.canary)), timeout=120, what="the canary takes traffic"
        )
        bad, onset = (await stage.view()).canary, time.time()
        view = await stage.watch(lambda v: v.phase == "RolledBack", timeout=120, what="the alert rolls it back")
        narrator.say(f"rolled back {time.time() - onset:.0f} s after the canary's first weight")
        narrator.say("status.alerts:")
        narrator.output(json.dumps(view.status["alerts"], indent=1), limit=20)
        narrator.table("Alertmanager", ("alert", "revision", "state"), await monitoring.alerts())
        rejection = view.status["rejected"][-1]
        narrator.say(rejection["message"])
        narrator.check(
            rejection["hash"] == bad and rejection["reason"] == "Alert", f"revision {bad} was rejected for Alert"
        )
        narrator.check(view.weights == {old: 100}, f"all traffic is back on {old}")
        narrator.say("the spec goes back to what serves:")
        await stage.edit(args=serving)
        await stage.watch(lambda v: v.phase == "Idle", timeout=30, what="the rollout has ended")
