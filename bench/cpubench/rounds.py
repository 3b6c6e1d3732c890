"""Measures in rounds, in turn from the first system and from the last, so that none always follows the same one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from rich.console import Console

from cpubench import runs


class Disturbed(Protocol):
    """A measurement that knows the CPU use of other programs meanwhile (100 is one core busy)."""

    @property
    def others_cpu(self) -> float: ...


D = TypeVar("D", bound=Disturbed)
T = TypeVar("T")


@dataclass(frozen=True)
class Rounds:
    """folder: of the systems' logs. quiet_timeout: seconds to wait for a quiet machine before a run; repeats: of a disturbed run.
    failed: the systems that a round had to leave out."""

    console: Console
    count: int
    folder: Path
    quiet_timeout: float
    repeats: int
    failed: list[str] = field(default_factory=list)

    def every(self, steps: Mapping[str, Callable[[Path, int], Sequence[T]]]) -> list[T]:
        """`steps` measure a system each, by its name; they get a log and the round's number. A system that fails is left out of the
        round, with its reason printed."""
        measured: list[T] = []
        for number in range(1, self.count + 1):
            for name in steps if number % 2 else reversed(list(steps)):
                self.say(f"round {number} of {self.count}, {name}")
                try:
                    measured += steps[name](self.folder / f"{name}-{number}.log", number)
                except RuntimeError as error:
                    self.failed.append(name)
                    self.console.print(str(error), style="red", markup=False)
        return measured

    def least_disturbed(self, measure: Callable[[Path], D]) -> Callable[[Path, int], list[D]]:
        """A step of one run: that which the rest of the machine disturbed least. Its speed plays no part in the choice."""

        def step(log: Path, _: int) -> list[D]:
            tried: list[D] = []
            while not tried or (min(run.others_cpu for run in tried) > runs.QUIET and len(tried) <= self.repeats):
                runs.await_quiet(self.quiet_timeout)
                tried.append(measure(log))
            return [min(tried, key=lambda run: run.others_cpu)]

        return step

    def say(self, line: str) -> None:
        self.console.print(f"{time.strftime('%H:%M:%S')} {line}", markup=False, highlight=False)
