"""Scene: a burst fills the queue and the KV pages; replicas go up, a pod is killed, replicas come down, no stream is cut."""

from __future__ import annotations

import asyncio
import time

from pagefleet_local.demo.scenes.canary import whole
from pagefleet_local.demo.stage import Stage
from pagefleet_local.fleet.view import View

TITLE = "A burst: queue depth and KV pages raise the replicas; afterwards they come down and no stream is cut"
BURST, LONG = 24, 160


async def play(stage: Stage) -> None:
    narrator = stage.narrator
    await stage.load.drain()
    began = time.time()
    narrator.say(f"burst: waves of {BURST} requests of {LONG} tokens at once")
    waves = asyncio.create_task(_waves(stage))
    up = await stage.watch(lambda v: replicas(v) >= 2, timeout=120, what="a second replica serves")
    narrator.check(replicas(up) >= 2, f"{replicas(up)} replicas are ready")
    await waves
    narrator.say("the burst is served")
    streams = asyncio.create_task(_stream_until_down(stage))
    down = await stage.watch(_one_left, timeout=180, what="one replica again")
    narrator.check(_one_left(down), "replicas came down to 1 again")
    await streams
    for decision in down.status.get("decisions", [])[-6:]:
        narrator.output(f"{decision['time']} {decision['kind']}: {decision['message']}")
    whole(stage, stage.load.since(began), "the burst and the scale-down")


async def _waves(stage: Stage) -> None:
    """Keep BURST requests in flight until a second replica is ready, then let them end."""

    async def user() -> None:
        await stage.load.one(LONG)
        while replicas(await stage.view()) < 2:
            await stage.load.one(LONG)

    await asyncio.gather(*(user() for _ in range(BURST)))


async def _stream_until_down(stage: Stage) -> None:
    """Long streams, a few at a time, all through the scale-down."""
    while not _one_left(await stage.view()):
        await asyncio.gather(*(stage.load.one(LONG) for _ in range(2)))


def _one_left(view: View) -> bool:
    return replicas(view) == 1 and desired(view) == 1


def replicas(view: View) -> int:
    return sum(entry.get("ready", 0) for entry in view.status.get("revisions") or [])


def desired(view: View) -> int:
    return sum(entry.get("desired", 0) for entry in view.status.get("revisions") or [])
