"""Runs stories: without faults for the truth, with one case each against it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults.cases import Case, Size
from faults.cases import counted as size_of
from faults.operator_process import Operator
from faults.oracle import Truth, counted, learn
from faults.proxy import Script, never
from faults.story import CHAPTERS, NotConverged, Story

from pagefleet_local.fleet.kubectl import until
from pagefleet_local.paths import Layout
from pagefleet_operator.cluster.api import Api

FIRST_PORT = 18300
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
    """Runs without faults: what is true, how large a story is, how long each chapter takes."""

    truth: Truth
    size: Size
    took: dict[str, float]


@dataclass
class Ground:
    """Where stories are run: one control plane, a folder for logs. `tell` may run several at once."""

    api: Api
    layout: Layout
    folder: Path

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)

    async def calm(self) -> Calm:
        """What two runs without faults say."""
        one, other = await self.story("calm", never, 120), await self.story("calm", never, 120)
        counts = self._counts(one)
        if counts != self._counts(other):
            raise NotConverged(f"two runs without faults differ: {counts} {self._counts(other)}")
        took = {chapter: max(one.took[chapter], other.took[chapter]) for chapter in CHAPTERS}
        sizes = [size_of(run.operator.proxy.calls) for run in (one, other)]
        size = Size(min(size.writes for size in sizes), min(size.lists for size in sizes))
        return Calm(learn(one.states, other.states, counts), size, took)

    async def tell(self, case: Case, calm: Calm) -> Told:
        """One story with a case's faults, judged."""
        try:
            story = await self.story(f"r{case.row}", case.script(), max(calm.took.values()) + case.slack + 30)
        except NotConverged as error:
            return Told(case.name, case.row, (str(error),), {}, (), 0)
        problems = calm.truth.differences(story.states, self._counts(story))
        slow = [
            f"{chapter} took {seconds:.1f} s, {calm.took[chapter]:.1f} s without faults"
            for chapter, seconds in story.took.items()
            if seconds > calm.took[chapter] + case.slack
        ]
        struck = tuple(map(str, story.operator.proxy.struck))
        return Told(case.name, case.row, (*problems, *slow), dict(story.took), struck, story.operator.deaths)

    async def story(self, prefix: str, script: Script, patience: float) -> Story:
        """Tell one story in a namespace of its own. Raises NotConverged."""
        number = next(self._numbers)
        operator = Operator(self.layout, self.folder, f"{prefix}-{number}", FIRST_PORT + number % 400, script)
        async with operator:
            await until(operator.ready, timeout=60, what=f"the operator of {operator.namespace} is ready")
            story = Story(self.api, operator, patience)
            await story.tell()
        await asyncio.sleep(AUDIT_SECONDS)
        return story

    def _counts(self, story: Story) -> dict[str, int]:
        return counted(self.layout.logs / "audit.log", story.namespace)


async def tell_all(
    ground: Ground, cases: Sequence[Case], calm: Calm, at_once: int, done: Callable[[Told], None] = lambda _: None
) -> list[Told]:
    """All cases, `at_once` at a time, in their order; `done` hears of each as it ends."""
    gate = asyncio.Semaphore(at_once)

    async def one(case: Case) -> Told:
        async with gate:
            told = await ground.tell(case, calm)
            done(told)
            return told

    return list(await asyncio.gather(*map(one, cases)))
