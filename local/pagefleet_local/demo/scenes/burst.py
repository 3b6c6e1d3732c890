"""Scene: a burst fills the queue and the KV pages; replicas go up, replicas come down, no stream is cut. The service has
promises meanwhile, and its status shows that every request of the scene was counted in them."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from pagefleet_local.demo.load import Sample
from pagefleet_local.demo.scenes.canary import whole
from pagefleet_local.demo.stage import NAME, NAMESPACE, Stage
from pagefleet_local.fleet.view import View

TITLE = "A burst: queue depth and KV pages raise the replicas; afterwards they come down and no stream is cut"
BURST, LONG = 24, 160
PAIR_SECONDS = 20.0
UNKNOWN_SECONDS = (
    330.0  # of a new service's life, in which the scaler does not know its load yet and removes no replica
)
DOWN_SECONDS = 150.0  # until the replicas are down, beside the scaler's window
MIN_WINDOW_SECONDS, MAX_WINDOW_SECONDS = 30.0, 300.0
PROMISES = {
    "window": "1d",
    "objectives": [
        {"name": "whole", "signal": "e2e", "quantile": 0.95, "seconds": 120},
        {"name": "available", "signal": "errors", "maxRate": "1%"},
    ],
}


async def play(stage: Stage) -> None:
    narrator = stage.narrator
    await stage.load.drain()
    before = (await stage.view()).status
    await promise(stage)
    began = time.time()
    narrator.say(f"burst: waves of {BURST} requests of {LONG} tokens at once")
    waves = asyncio.create_task(_waves(stage))
    up = await stage.watch(lambda v: replicas(v) >= 2, timeout=120, what="a second replica serves")
    narrator.check(replicas(up) >= 2, f"{replicas(up)} replicas are ready")
    await waves
    narrator.say("the burst is served")
    streams = asyncio.create_task(_stream_until_down(stage))
    young = max(0.0, UNKNOWN_SECONDS - (time.time() - up.created))
    limit = DOWN_SECONDS + _window(up) + young
    down = await stage.watch(_one_left, timeout=limit, what="one replica again")
    narrator.check(_one_left(down), "replicas came down to 1 again")
    await streams
    for decision in down.status.get("decisions", [])[-6:]:
        narrator.output(f"{decision['time']} {decision['kind']}: {decision['message']}")
    ended = stage.load.since(began)
    whole(stage, ended, "the burst and the scale-down")
    await _kept(stage, len(ended), before["stable"])


async def promise(stage: Stage) -> None:
    """Add PROMISES to the running service."""
    patch = json.dumps({"spec": {"slo": PROMISES}})
    command = ("patch", "inferenceservice", NAME, "-n", NAMESPACE, "--type=merge", "-p", patch)
    stage.narrator.command(f"kubectl patch isvc {NAME} --type=merge -p '{patch}'")
    stage.narrator.output((await stage.kubectl.run(*command)).text)
    await stage.watch(lambda v: bool(_objectives(v)), timeout=60, what="the operator has the promises")


async def _kept(stage: Stage, ended: int, stable: str) -> None:
    """Check that the requests of the scene were counted in each promise, and that no promise was broken.

    A gateway may learn of the promises a moment after the operator, so requests of the first wave may be missing.
    """
    narrator = stage.narrator
    view = await stage.watch(
        lambda v: _counted(v) >= ended - BURST, timeout=120, what="the promises count the requests"
    )
    for one in _objectives(view):
        narrator.check(
            one["requests"] <= ended and one.get("left", 0.0) >= 0,
            f"{one['name']} ({one['promise']}): {one['requests']} requests, {one['missed']} missed it",
        )
    narrator.check(
        view.status["slo"]["left"].endswith("%"), f"kubectl get isvc shows {view.status['slo']['left']} in SLO"
    )
    narrator.check(view.status["stable"] == stable, "a promise makes no new revision")


def _counted(view: View) -> int:
    return min((one["requests"] for one in _objectives(view)), default=0)


def _objectives(view: View) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (view.status.get("slo") or {}).get("objectives", [])
    return found


async def _waves(stage: Stage) -> None:
    """Keep BURST requests in flight until a second replica is ready, then let them end."""

    async def user() -> None:
        await stage.load.one(LONG)
        while replicas(await stage.view()) < 2:
            await stage.load.one(LONG)

    await asyncio.gather(*(user() for _ in range(BURST)))


async def _stream_until_down(stage: Stage) -> None:
    """Start two long streams every PAIR_SECONDS, however fast the engines are, all through the scale-down.

    Streams that followed one another at once would take whatever the replicas give. Where replicas share the cores of one machine, that
    can be more than one of them gave in the burst, and the scaler would rightly keep two.
    """
    streams: list[asyncio.Task[Sample]] = []
    while not _one_left(await stage.view()):
        streams += [asyncio.create_task(stage.load.one(LONG)) for _ in range(2)]
        await asyncio.sleep(PAIR_SECONDS)
    await asyncio.gather(*streams)


def _one_left(view: View) -> bool:
    return replicas(view) == 1 and desired(view) == 1


def _window(view: View) -> float:
    """The seconds of calm before the scaler removes a replica: as many as a pod takes to start. With much else to do pods start slowly."""
    learned = [entry.get("startup") or 0.0 for entry in view.status.get("scaling") or []]
    return min(MAX_WINDOW_SECONDS, max(MIN_WINDOW_SECONDS, *learned, 0.0))


def replicas(view: View) -> int:
    return sum(entry.get("ready", 0) for entry in view.status.get("revisions") or [])


def desired(view: View) -> int:
    return sum(entry.get("desired", 0) for entry in view.status.get("revisions") or [])
