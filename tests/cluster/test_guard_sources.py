"""Protects a rollout whose requests no gateway sees, with the shipped operator on a real API server: told to listen to the
engines, it waits while one of them is silent and says which, goes on with an equal canary, rolls a slower one back, and
its decisions say who measured; sources that measure nothing are refused, by the CRD's own rules where there are such."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from support.cluster.plane import Plane
from support.cluster.services import NAMESPACE, removed, service, settled, view
from support.engine.measured import MeasuredEngine

from pagefleet_contract.names import ENGINE_PORT, REVISION_LABEL, SERVICE_LABEL
from pagefleet_local.fleet.kubectl import Document, until
from pagefleet_local.fleet.view import View

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
NAME = "unseen"
GUARD = {
    "latency": [{"signal": "ttft", "source": "Engine", "minRequests": 200}],
    "errors": {"maxRate": "1%", "source": "Engine"},
}


def revision(number: int, steps: list[dict[str, Any]], guard: Document) -> Document:
    document = service(NAME, args=[f"--max-num-seqs={number}"])
    document["spec"] |= {"scaling": {"min": 1, "max": 1}, "rollout": {"steps": steps, "guard": guard}}
    return document


class Engines:
    """An engine on each pod's own address."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._running: list[MeasuredEngine] = []

    async def begin(self, revision: str, factor: float = 1.0) -> None:
        for pod in await self.pods(f"{REVISION_LABEL}={revision}"):
            self._running.append(MeasuredEngine(len(self._running), factor))
            await self._running[-1].serve(pod["status"]["podIP"], ENGINE_PORT)

    async def pods(self, selector: str) -> list[Document]:
        listed = await self._plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=selector)
        return list(listed["items"])

    async def gone(self) -> bool:
        return not await self.pods(f"{SERVICE_LABEL}={NAME}")

    async def close(self) -> None:
        for engine in self._running:
            await engine.close()


@pytest_asyncio.fixture(loop_scope="session")
async def engines(plane: Plane) -> AsyncIterator[Engines]:
    running = Engines(plane)
    yield running
    await running.close()
    await removed(plane, NAME)
    await until(running.gone, timeout=60, what="its pods are gone", interval=0.3)


async def test_a_canary_that_no_gateway_sees_is_judged_by_its_engine(plane: Plane, engines: Engines) -> None:
    await plane.kubectl.apply(revision(1, [{"weight": 50}], GUARD))
    first = (await settled(plane, NAME, "it serves", lambda v: v.is_true("Ready"))).stable
    await engines.begin(first)

    await plane.kubectl.apply(revision(2, [{"weight": 50, "minRequests": 100}, {"weight": 80}], GUARD))

    def verdict(state: View) -> Any:
        return state.status.get("rollout", {}).get("verdict", {})

    waits = await settled(
        plane, NAME, "the canary's engine is missed", lambda v: "does not answer" in verdict(v).get("message", "")
    )
    assert verdict(waits)["outcome"] == "Inconclusive"
    assert f"pod {NAME}-{waits.canary}" in verdict(waits)["message"]
    second = waits.canary
    await engines.begin(second)
    promoted = await settled(plane, NAME, "it is promoted", lambda v: v.stable == second and not v.canary)
    messages = [entry["message"] for entry in promoted.status["decisions"] if entry["kind"] == "StepAdvanced"]
    assert messages[1].endswith("; source Engine)"), messages

    await plane.kubectl.apply(revision(3, [{"weight": 50, "hold": "1h"}], GUARD))
    stepping = await settled(plane, NAME, "the next canary has weight", lambda v: v.phase == "Step")
    await engines.begin(stepping.canary, factor=3.0)

    async def rolled_back() -> bool:
        return (await view(plane, NAME)).phase == "RolledBack"

    await until(rolled_back, timeout=180, what="enough requests of the slow canary are measured", interval=0.5)
    back = await view(plane, NAME)
    (rejected,) = back.status["rejected"]
    assert (rejected["hash"], rejected["reason"]) == (stepping.canary, "LatencyRegression")
    assert rejected["message"].endswith("; source Engine")
    assert rejected["verdict"]["source"] == "Engine"
    assert {entry["source"] for entry in back.status["rollout"]["verdicts"]} == {"Engine"}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"signal": "itl", "source": "Gateway"}, "source Gateway cannot measure itl"),
        ({"signal": "tpot", "source": "Engine"}, "tpot is measured by source Gateway"),
        ({"signal": "ttft", "source": "Prometheus", "histogram": "h{a='b'}"}, "must name $revision"),
    ],
)
async def test_a_source_that_measures_nothing_is_refused(plane: Plane, entry: Document, words: str) -> None:
    document = revision(1, [{"weight": 50}], {"latency": [entry]})
    document["metadata"]["name"] = "unjudged"
    applied = await plane.kubectl.apply(document, check=False)
    if await plane.kubectl.server_minor() >= 25:
        assert words in applied.text
        return
    pods = await settled(plane, "unjudged", "it is refused", lambda v: v.is_true("Degraded"))
    assert words in pods.condition("Degraded")["message"]
    await plane.kubectl.run("delete", "isvc", "unjudged", "-n", NAMESPACE)
