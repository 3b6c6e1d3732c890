"""Protects a service whose pods start slowly, crash, run out of memory and get evicted, by a seed: through a promotion every
request through a real gateway is answered, no revision gets traffic before it has a ready pod, and the promotion ends (row 34 of
the reliability table). An engine answers only at the address of a pod that lives. PAGEFLEET_HARD_SECONDS is how long it goes on."""

from __future__ import annotations

import asyncio
import os

import pytest
from faults.operator_process import Operator
from faults.outages import Traffic, gateway
from faults.runs import Ground
from faults.story import Story, quiet
from support.cluster.pod_engines import PodEngines
from support.cluster.pod_life import End, Life
from support.sample_service import sample

from pagefleet_local.fleet.kubectl import until

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
SECONDS = float(os.environ.get("PAGEFLEET_HARD_SECONDS", "4"))
SEED = int(os.environ.get("PAGEFLEET_FAULT_SEED", "1"))
NAMESPACE, PORT, PODS = "hard-pods", 18960, 4
SERVICES = f"/apis/pagefleet.io/v1alpha1/namespaces/{NAMESPACE}/inferenceservices"


async def test_pods_that_crash_run_out_of_memory_and_are_evicted(ground: Ground) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    await ground.api.create("/api/v1/namespaces", namespace)
    ground.node.lives[NAMESPACE] = Life(SEED, start=0.7, lasts=6.0, back=0.5)
    engines = PodEngines()

    async def every_end() -> bool:
        return set(ground.node.happened) == set(End)

    async with Operator(ground.layout, ground.folder, NAMESPACE, PORT) as operator, gateway(ground, engines):
        await until(operator.ready, timeout=60, what="the operator is ready")
        story, traffic = Story(ground.api, operator, timeout=60.0 + 2 * SECONDS), Traffic()
        traffic.stories.append(story)
        recording = asyncio.create_task(story.recording.run())
        asking = asyncio.create_task(traffic.run())
        try:
            document = sample()
            document["metadata"] = {"name": "story", "namespace": NAMESPACE}
            document["spec"]["scaling"] = {"min": PODS, "max": PODS}
            document["spec"]["rollout"] = {"steps": [{"weight": 50, "hold": f"{SECONDS:g}s"}], "guard": {}}
            await ground.api.create(SERVICES, document)
            old = (await story.until("Ready", lambda v: v.is_true("Ready"))).stable
            story.states["create"] = {}  # from now on each request must be answered
            await story._edit(lambda spec: spec["engine"].update(args=["--max-num-seqs=4"]))
            await story.until("promoted", lambda v: v.stable not in ("", old) and v.phase == "Idle")
            await until(every_end, timeout=120, what="a crash, no memory left and an eviction, while requests go on")
            del ground.node.lives[NAMESPACE]
            await story.until("quiet again", lambda v: v.is_true("Ready") and quiet(v))
        finally:
            for task in (asking, recording):
                task.cancel()
            await asyncio.gather(asking, recording, return_exceptions=True)

        assert traffic.failures == []
        assert traffic.answers[200] > 20 and len(engines.answers) == 2
        assert story.recording.violations() == []
        assert operator.deaths == 0
