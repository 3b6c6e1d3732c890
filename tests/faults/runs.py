"""Runs stories: without faults to learn the expected states, and with one case of faults each, compared with those."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faults.cases import Case
from faults.edits import Edits
from faults.operator_process import Operator
from faults.oracle import Truth, counted, learn
from faults.proxy import Script, never
from faults.story import NotConverged, Story
from support.cluster.status_node import StatusNode

from pagefleet_local.base.paths import Layout
from pagefleet_local.fleet.kubectl import until
from pagefleet_operator.kube.client import Api

FIRST_PORT = 18300
EXTRA_SECONDS = 60.0  # beyond a chapter's limit, so that a slow story can be told from one that never converges
LIBRARIES = "import aiohttp, kopf"
AUDIT_SECONDS = 0.5  # the API server writes its audit log a moment after its answer


@dataclass(frozen=True)
class StoryResult:
    """The result of one story. `problems` in words; empty when it went as without faults."""

    name: str
    row: int
    problems: tuple[str, ...]
    seconds: dict[str, float]
    struck: tuple[str, ...]
    deaths: int


@dataclass(frozen=True)
class Calm:
    """Measurements of runs without faults: the expected states, the writes of a story, the seconds of each chapter, and the
    pace of the machine (`pace`) at that time."""

    truth: Truth
    writes: int
    durations: dict[str, float]
    pace: float

    @property
    def certain(self) -> int:
        """The number of writes that every story has: its creations, its deletions, and a status after each chapter but the
        last. The number of other statuses and Events depends on how fast one state follows another."""
        return sum(self.truth.counts.values()) + len(self.durations) - 1

    def limit(self, chapter: str, slack: float, pace: float) -> float:
        """Return the seconds that a chapter may take on a machine of this pace. `slack` holds whatever the fault costs, starts
        of a killed operator too: a slower operator gets no more time."""
        return self.durations[chapter] * max(1.0, pace / self.pace) + slack


@dataclass
class Ground:
    """The place where stories run: one control plane with its node, a folder for logs. Several cases may run at once."""

    api: Api
    layout: Layout
    node: StatusNode
    folder: Path
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    kind: type[Story] = Story

    async def calm(self) -> Calm:
        """Run two stories without faults, and return their measurements. Raises NotConverged when they differ."""
        one, other = await self.story("calm", never, 120), await self.story("calm", never, 120)
        counts = self._counts(one)
        if counts != self._counts(other):
            raise NotConverged(f"two runs without faults differ: {counts} {self._counts(other)}")
        durations = {chapter: max(one.durations[chapter], other.durations[chapter]) for chapter in self.kind.chapters}
        writes = min(max(call.write for call in run.operator.proxy.calls) for run in (one, other))
        return Calm(learn(one.states, other.states, counts), writes, durations, max(one.pace, other.pace))

    async def run_case(self, case: Case, calm: Calm) -> StoryResult:
        """Run one story with a case's faults, and judge it."""
        script, timeout = case.script(), max(calm.durations.values()) + case.slack + EXTRA_SECONDS
        edits = script if isinstance(script, Edits) else None
        try:
            story = await self.story(f"r{case.row}", script, timeout, edits.begun if edits else lambda _: None)
        except NotConverged as error:
            return StoryResult(case.name, case.row, (str(error),), {}, (), 0)
        return self.judged(case, story, calm, edits)

    def judged(
        self, case: Case, story: Story, calm: Calm, edits: Edits | None = None, *, unheard: bool = False
    ) -> StoryResult:
        """Compare a story that ran to its end with the expected states. Fields that `edits` changed must have the edited values.
        `unheard`: the audit log's last lines may be lost, because the API server was killed."""
        states, lost = edits.without(story.states) if edits else (story.states, [])
        differences = calm.truth.differences(states, self._counts(story), unheard)
        problems = lost + differences + story.recording.violations()
        slow = [
            f"{chapter} took {seconds:.1f} s, {calm.durations[chapter]:.1f} s without faults"
            for chapter, seconds in story.durations.items()
            if seconds > calm.limit(chapter, case.slack, story.pace)
        ]
        own = story.operator.deaths - story.operator.proxy.kills
        died = [f"the operator ended by itself {own} times"] if own > 0 else []
        struck = tuple(map(str, story.operator.proxy.struck))
        return StoryResult(
            case.name, case.row, (*problems, *slow, *died), dict(story.durations), struck, story.operator.deaths
        )

    async def story(
        self, prefix: str, script: Script, timeout: float, begun: Callable[[Story], None] = lambda _: None
    ) -> Story:
        """Run one story in a namespace of its own; `begun` is called with it first. Raises NotConverged."""
        number = next(self.numbers)
        operator = Operator(self.layout, self.folder, f"{prefix}-{number}", FIRST_PORT + number % 400, script)
        now = await pace()
        async with operator:
            await until(operator.ready, timeout=90, what=f"the operator of {operator.namespace} is ready")
            story = self.kind(self.api, operator, timeout, pace=now)
            begun(story)
            await story.run()
        await asyncio.sleep(AUDIT_SECONDS)
        return story

    def _counts(self, story: Story) -> dict[str, int]:
        return counted(self.layout.logs, story.namespace)


async def pace() -> float:
    """Return the seconds in which an interpreter imports libraries now: how slow the machine is, whatever the operator does."""
    since = time.monotonic()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", LIBRARIES)
    if await process.wait():
        raise RuntimeError(f"the interpreter failed at {LIBRARIES!r}")
    return time.monotonic() - since


async def run_all(
    ground: Ground,
    cases: Sequence[Case],
    calm: Calm,
    at_once: int,
    done: Callable[[StoryResult], None] = lambda _: None,
) -> list[StoryResult]:
    """Run all cases, `at_once` at a time, in their order; `done` is called with each result."""
    gate = asyncio.Semaphore(at_once)

    async def one(case: Case) -> StoryResult:
        async with gate:
            story = await ground.run_case(case, calm)
            done(story)
            return story

    return list(await asyncio.gather(*map(one, cases)))
