"""An abort when the new revision has all the traffic and the good one no pods: clients must not notice.

A revision is promoted and watched; the previous one is at zero replicas. Under open-loop load its people say `abort`: the
previous revision's pods are raised first, and requests stay where they were until these are ready (they start at
different times, so traffic goes over in parts). Counted is every request that did not get its whole answer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

from bench.rollbackbench import alerts
from bench.rollbackbench.fleet import SERVICES, Fleet, fleet
from bench.rollbackbench.load import TOKENS_A_SECOND, Answers, Users

RATE, ANSWER_SECONDS, REPLICAS = 40.0, 2.0, 3
NAME = "full"
AFTER_SECONDS = 12.0  # load goes on until the given-up pods are gone


def spec(sequences: int) -> dict[str, Any]:
    rollout = {"steps": [], "guard": {}, "afterPromotion": {"watch": "1h"}}
    return {**alerts.spec(sequences), "scaling": {"min": REPLICAS, "max": REPLICAS}, "rollout": rollout}


async def measure(aborts: int) -> Mapping[str, Any]:
    answers, took = Answers(), []
    async with fleet(1) as running:
        await running.create(NAME, spec(1))
        await running.until(NAME, "it serves", alerts.settled)
        users = Users(running.http, f"{running.url}/{NAME}", answers, RATE)
        load = asyncio.create_task(users.run(int(ANSWER_SECONDS * TOKENS_A_SECOND)))
        try:
            for number in range(2, aborts + 2):
                took.append(await _abort(running, number))
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
            await users.finished()
    return {
        "aborts": aborts,
        "overMs": alerts.quantiles(took),
        "answered": answers.answered,
        "shed": answers.shed,
        "truncated": answers.truncated,
        "failed": answers.failed,
        "failures": dict(answers.failures),
    }


async def _abort(running: Fleet, number: int) -> float:
    """Seconds from the order until the previous revision has everything."""
    before = (await running.status(NAME))["stable"]
    await running.api.merge(f"{SERVICES}/{NAME}", {"spec": spec(number)})
    await running.until(NAME, "promoted", lambda s: s["stable"] != before and s["rollout"]["phase"] == "Watching")
    await running.until(NAME, "the previous revision is at zero", lambda s: _at_zero(s, before))
    action = {"id": f"abort-{number}", "action": "abort"}
    annotations = {"annotations": {"pagefleet.io/action": json.dumps(action)}}
    sent = time.monotonic()
    await running.api.merge(f"{SERVICES}/{NAME}", {"metadata": annotations})
    back = await running.until(NAME, "rolled back", lambda s: s["rollout"]["phase"] == "RolledBack")
    took = time.monotonic() - sent
    if back["traffic"] != [{"revision": before, "weight": 100}]:
        raise RuntimeError(f"rolled back, and the weights are {back['traffic']}")
    await asyncio.sleep(AFTER_SECONDS)
    return took


def _at_zero(status: Mapping[str, Any], revision: str) -> bool:
    entry = next((one for one in status["revisions"] if one["hash"] == revision), {})
    return not entry.get("ready") and not entry.get("desired") and not status.get("draining")
