"""An alert flood (row 20): `PYTHONPATH=tests python -m faults.flood [--seconds 60] [--rate 1000]`. On a control plane of its
own, two canaries, one after the other, come under a storm of posts to the shipped operator's webhook: the same few alerts
again and again, resolved alerts, alerts of other objects, in any order. In each storm the operator is killed. Each canary
must be rolled back once, every alert answered with 200 must be stored, in few writes, and the operator must not grow."""

from __future__ import annotations

import asyncio
import os
import random
import re
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from faults.operator_process import TOKEN, Operator
from faults.proxy import Call, Fault
from faults.report import store
from faults.runs import Ground
from faults.storm import Storm, Subjects
from rich.console import Console
from support.cluster.own_plane import own_plane
from support.private import alone
from support.recording import Recording

from pagefleet_local.fleet.kubectl import until
from pagefleet_local.fleet.view import View
from pagefleet_operator.kube.client import Api

NAMESPACE, NAME, PORT, TIMEOUT_SECONDS = "flood", "flood", 18255, 180.0
SERVICES = f"/apis/pagefleet.io/v1alpha1/namespaces/{NAMESPACE}/inferenceservices"
CANARIES = ("--max-num-seqs=4", "--max-num-seqs=2")
KILL_AFTER = 0.25  # seconds of a storm: the first alerts are stored then, or are about to be
SLOW_SECONDS = 0.1
MAX_WRITES, MAX_GROWTH = 5, 50.0  # for a revision's alerts; MiB
console = Console(highlight=False)
Document = dict[str, Any]


@dataclass
class Flood:
    """The state of the flood. `writes` of alerts by canary; `rates` of posts answered in a second, by storm; in MiB, `size`
    before the storms and `largest`."""

    api: Api
    operator: Operator
    recording: Recording
    subjects: Subjects
    writes: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    alerts: set[str] = field(default_factory=set)
    rates: list[float] = field(default_factory=list)
    size: float = 0.0
    largest: float = 0.0

    def body(self) -> tuple[Document, Callable[[], Awaitable[None]] | None]:
        """Make a post. The first of each alert that counts must be in the status once it was answered."""
        alerts = self.subjects.alerts()
        new = {
            alert["fingerprint"]
            for alert in alerts
            if alert["status"] == "firing" and alert["labels"]["revision"] == self.subjects.now and _ours(alert)
        } - self.alerts

        async def answered() -> None:
            if new - self.alerts:
                status = (await self.api.get(f"{SERVICES}/{NAME}"))["status"]
                missing = new - {alert["fingerprint"] for alert in status.get("alerts", ())}
                self.alerts |= new
                self.problems += [f"{one} was answered 200 and is not stored" for one in sorted(missing)]

        return {"version": "4", "alerts": alerts}, answered

    async def view(self) -> View:
        return View(await self.api.get(f"{SERVICES}/{NAME}"))

    async def until(self, what: str, holds: Callable[[View], bool]) -> View:
        async def reached() -> bool:
            return holds(await self.view())

        await until(reached, timeout=TIMEOUT_SECONDS, what=what)
        return await self.view()

    async def measure(self) -> None:
        """Measure the operator's resident memory, for ever."""
        while True:
            self.largest = max(self.largest, resident(self.operator.pid))
            await asyncio.sleep(0.1)

    async def canary(self, args: str) -> str:
        """Make a user's edit, and wait until its canary has half of the traffic."""
        await self.api.merge(f"{SERVICES}/{NAME}", {"spec": {"engine": {"args": [args]}}})
        return (await self.until("the canary has half", lambda v: v.weights.get(v.canary) == 50)).canary

    async def again(self, deaths: int) -> bool:
        """Whether the operator that followed the last death is ready."""
        return self.operator.deaths > deaths and await self.operator.ready()

    def stored(self) -> int:
        """Count how often the operators so far have written alerts into the status, by their own logs."""
        return len(re.findall(rf"stored \d+ alerts for {NAMESPACE}/{NAME}", self.operator.log.read_text()))

    def rollbacks(self) -> Counter[str]:
        """Count how often each revision was rolled back, by every version of the object that the watch received."""
        counts: Counter[str] = Counter()
        before = ""
        for version in self.recording.versions.get((NAMESPACE, NAME), []):
            view = View(version)
            if view.phase == "RolledBack" and before != "RolledBack":
                counts[view.status["rejected"][-1]["hash"]] += 1
            before = view.phase
        return counts


def _ours(alert: Document) -> bool:
    labels = alert["labels"]
    return (labels["severity"], labels["service"], labels["namespace"]) == ("page", NAME, NAMESPACE)


def resident(pid: int) -> float:
    """Return the resident memory in MiB; 0 for a process that is gone."""
    try:
        match = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    except OSError:
        return 0.0
    return int(match[1]) / 1024 if match else 0.0


def _slow(call: Call) -> Fault | None:
    """Delay each write of a status: an operator that answers before its status is stored is then detected."""
    return Fault(wait=partial(asyncio.sleep, SLOW_SECONDS)) if call.write and call.path.endswith("/status") else None


async def flood(ground: Ground, seconds: float, rate: float, seed: int = 0) -> tuple[Flood, Storm]:
    """Run both storms on a control plane whose namespace exists, and return the results. `seconds`: of both, with an operator."""
    async with Operator(ground.layout, ground.folder, NAMESPACE, PORT, _slow) as operator:
        await until(operator.ready, timeout=TIMEOUT_SECONDS, what="the operator is ready")
        subjects = Subjects(NAMESPACE, NAME, random.Random(seed))
        state = Flood(ground.api, operator, Recording(ground.api, NAMESPACE), subjects)
        storm = Storm(PORT, TOKEN, rate, state.body)
        watching = asyncio.create_task(state.recording.run())
        measuring: asyncio.Task[None] | None = None
        try:
            await ground.api.create(SERVICES, _service())
            stable = (await state.until("Ready", lambda v: v.is_true("Ready"))).stable
            for args in CANARIES:
                canary = await state.canary(args)
                if measuring is None:
                    state.size = resident(operator.pid)
                    measuring = asyncio.create_task(state.measure())
                await _storm(state, storm, canary, seconds / len(CANARIES))
                await state.until("rolled back", lambda v: v.phase == "RolledBack" and v.weights == {stable: 100})
            _judge(state)
        finally:
            for task in filter(None, (watching, measuring)):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
    return state, storm


async def _storm(state: Flood, storm: Storm, canary: str, seconds: float) -> None:
    """Kill the operator when the first alerts come, and in the middle. `seconds`: how long it runs besides."""
    before, over, answered, state.subjects.now = state.stored(), asyncio.Event(), storm.answers[200], canary
    blowing = asyncio.create_task(storm.run(over))
    await asyncio.sleep(KILL_AFTER)
    for _ in range(2):
        deaths = state.operator.deaths
        state.operator.kill()
        await until(
            lambda deaths=deaths: state.again(deaths), timeout=TIMEOUT_SECONDS, what="the operator is there again"
        )
        await asyncio.sleep(seconds / 2)
    state.rates.append((storm.answers[200] - answered) / seconds)
    over.set()
    await blowing
    state.writes[canary] = state.stored() - before
    state.subjects.before.append(canary)
    state.subjects.now = ""


def _judge(state: Flood) -> None:
    once = dict.fromkeys(state.writes, 1)
    if state.rollbacks() != once:
        state.problems.append(f"rolled back: {dict(state.rollbacks())}, each should be once: {list(once)}")
    for canary, writes in state.writes.items():
        if not 0 < writes <= MAX_WRITES:
            state.problems.append(f"{writes} writes of alerts about {canary}")
    if state.largest - state.size > MAX_GROWTH:
        state.problems.append(f"the operator grew from {state.size:.0f} to {state.largest:.0f} MiB")
    if not state.operator.deaths:
        state.problems.append("the operator was never killed")
    state.problems += state.recording.violations()


def summary(state: Flood, storm: Storm, seconds: float) -> str:
    """Return the figures in a line."""
    return (
        f"{storm.answers[200]} posts, {min(state.rates, default=0):.0f}/s of {storm.rate:g}/s for {seconds:g} s, "
        f"{state.operator.deaths} kills, rollbacks {sorted(state.rollbacks().values())}, "
        f"writes of alerts {sorted(state.writes.values())}, memory {state.largest - state.size:+.0f} MiB"
    )


def _service() -> Document:
    return {
        "apiVersion": "pagefleet.io/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": NAME},
        "spec": {
            "model": {"source": "file:///model"},
            "resources": {"cpu": "10m", "memory": "16Mi"},
            "scaling": {"min": 1, "max": 1},
            "rollout": {
                "steps": [{"weight": 50, "hold": "1h"}],
                "guard": {},
                "alerts": {"matchLabels": {"severity": "page"}},
            },
        },
    }


def main(
    seconds: Annotated[float, typer.Option(help="how long both storms last, kills apart")] = float(
        os.environ.get("PAGEFLEET_FLOOD_SECONDS", "60")
    ),
    rate: Annotated[float, typer.Option(help="posts a second")] = 1000.0,
    private: Annotated[str, typer.Option(help="the name of its folders")] = "flood",
) -> None:
    """Flood the operator's alert webhook."""
    alone(private)
    state, storm = asyncio.run(_play(seconds, rate))
    for problem in state.problems:
        console.print(f"[red]{problem}[/red]")
    console.print(summary(state, storm, seconds))
    store("flood", not state.problems, summary(state, storm, seconds))
    raise typer.Exit(1 if state.problems else 0)


async def _play(seconds: float, rate: float) -> tuple[Flood, Storm]:
    with tempfile.TemporaryDirectory() as folder:
        async with own_plane(NAMESPACE) as plane:
            return await flood(Ground(plane.api, plane.layout, plane.node, Path(folder)), seconds, rate)


if __name__ == "__main__":
    typer.run(main)
