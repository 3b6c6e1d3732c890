"""Runs stories: without faults for the truth, with one case each against it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faults.cases import Case
from faults.edits import Edits
from faults.operator_process import Operator
from faults.oracle import Truth, counted, learn
from faults.proxy import Script, never
from faults.story import CHAPTERS, NotConverged, Story

from pagefleet_local.base.paths import Layout
from pagefleet_local.fleet.kubectl import until
from pagefleet_operator.kube.client import Api

FIRST_PORT = 18300
PATIENCE = 60.0  # beyond a chapter's limit: to see whether it converges at all
AUDIT_SECONDS = 0.5  # the API server writes its audit log a moment after its answer


@dataclass(frozen=True)
class Told:
    """What one story came to. `problems` in words; empty when it went as without faults."""

    name: str
    row: int
    problems: tuple[str, ...]
    seconds: dict[str, float]
    struck: tuple[str, ...]
    deaths: int


@dataclass(frozen=True)
class Calm:
    """Runs without faults: what is true, how many writes a story takes, how long each chapter takes, and how long the
    operator took to start."""

    truth: Truth
    writes: int
    took: dict[str, float]
    started: float

    @property
    def certain(self) -> int:
        """Writes that no story is without: its creations, its deletions, and a status after each chapter but the last. How
        many more statuses and Events there are depends on how fast one state follows another."""
        return sum(self.truth.counts.values()) + len(CHAPTERS) - 1

    def limit(self, chapter: str, slack: float, started: float, deaths: int) -> float:
        """Seconds that a chapter may take, when the operator's start now takes `started`: that says how slow the machine
        is, and every death costs one."""
        slow = max(1.0, started / self.started)
        return self.took[chapter] * slow + slack + deaths * started


@dataclass
class Ground:
    """Where stories are run: one control plane, a folder for logs. `tell` may run several at once."""

    api: Api
    layout: Layout
    folder: Path
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def calm(self) -> Calm:
        """What two runs without faults say."""
        one, other = await self.story("calm", never, 120), await self.story("calm", never, 120)
        counts = self._counts(one)
        if counts != self._counts(other):
            raise NotConverged(f"two runs without faults differ: {counts} {self._counts(other)}")
        took = {chapter: max(one.took[chapter], other.took[chapter]) for chapter in CHAPTERS}
        writes = min(max(call.write for call in run.operator.proxy.calls) for run in (one, other))
        return Calm(learn(one.states, other.states, counts), writes, took, max(one.started, other.started))

    async def tell(self, case: Case, calm: Calm) -> Told:
        """One story with a case's faults, judged."""
        script, patience = case.script(), max(calm.took.values()) + case.slack + PATIENCE
        edits = script if isinstance(script, Edits) else None
        try:
            story = await self.story(f"r{case.row}", script, patience, edits.begun if edits else lambda _: None)
        except NotConverged as error:
            return Told(case.name, case.row, (str(error),), {}, (), 0)
        return self.judged(case, story, calm, edits)

    def judged(
        self, case: Case, story: Story, calm: Calm, edits: Edits | None = None, *, unheard: bool = False
    ) -> Told:
        """A story that was told to its end, against the truth; what `edits` changed must be as it was left. `unheard`: the
        audit log's last lines may be lost, with the API server that was killed."""
        states, lost = edits.without(story.states) if edits else (story.states, [])
        differences = calm.truth.differences(states, self._counts(story), unheard)
        problems = lost + differences + story.recording.violations()
        slow = [
            f"{chapter} took {seconds:.1f} s, {calm.took[chapter]:.1f} s without faults"
            for chapter, seconds in story.took.items()
            if seconds > calm.limit(chapter, case.slack, story.started, story.operator.deaths)
        ]
        own = story.operator.deaths - story.operator.proxy.kills
        died = [f"the operator ended by itself {own} times"] if own > 0 else []
        struck = tuple(map(str, story.operator.proxy.struck))
        return Told(case.name, case.row, (*problems, *slow, *died), dict(story.took), struck, story.operator.deaths)

    async def story(
        self, prefix: str, script: Script, patience: float, begun: Callable[[Story], None] = lambda _: None
    ) -> Story:
        """Tell one story in a namespace of its own; `begun` hears of it first. Raises NotConverged."""
        number = next(self.numbers)
        operator = Operator(self.layout, self.folder, f"{prefix}-{number}", FIRST_PORT + number % 400, script)
        since = time.monotonic()
        async with operator:
            await until(operator.ready, timeout=90, what=f"the operator of {operator.namespace} is ready")
            story = Story(self.api, operator, patience, started=time.monotonic() - since)
            begun(story)
            await story.tell()
        await asyncio.sleep(AUDIT_SECONDS)
        return story

    def _counts(self, story: Story) -> dict[str, int]:
        return counted(self.layout.logs, story.namespace)


async def tell_all(
    ground: Ground, cases: Sequence[Case], calm: Calm, at_once: int, done: Callable[[Told], None] = lambda _: None
) -> list[Told]:
    """All cases, `at_once` at a time, in their order; `done` hears of each as it ends."""
    gate = asyncio.Semaphore(at_once)

    async def one(case: Case) -> Told:
        async with gate:
            story = await ground.tell(case, calm)
            done(story)
            return story

    return list(await asyncio.gather(*map(one, cases)))
