"""Prints how far a run is: mutants, rate, the time that is left, and each survivor as it is found."""

from __future__ import annotations

import sys
import time

from mutation.mutants import Mutant
from mutation.stored import Outcome
from mutation.suites import ROOT, Suite

EVERY_SECONDS = 10.0


def say(text: str) -> None:
    """Write a line at once, also into a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Progress:
    def __init__(self, total: int, suite: Suite) -> None:
        self._total, self._modules = total, suite.modules()
        self._known = self._tried = self._survivors = 0
        self._began = time.monotonic()
        self._printed = self._began

    def known(self, mutant: Mutant, outcome: Outcome) -> None:
        """An earlier run's outcome still holds."""
        self._known += 1
        self._survivors += not outcome.killed

    def tried(self, mutant: Mutant, outcome: Outcome) -> None:
        self._tried += 1
        if not outcome.killed:
            self._survivors += 1
            say(shown(mutant, self._modules[mutant.module].relative_to(ROOT).as_posix()))
        now, done = time.monotonic(), self._known + self._tried
        if now - self._printed < EVERY_SECONDS and done < self._total:
            return
        self._printed = now
        rate = self._tried / max(now - self._began, 1e-9)
        left = (self._total - done) / rate
        say(
            f"{done} of {self._total} mutants ({self._known} of an earlier run), {self._survivors} survive, "
            f"{rate:.1f}/s, {left / 60:.1f} minutes left"
        )


def shown(mutant: Mutant, path: str) -> str:
    return f"{path}:{mutant.line} {mutant.function}\n  - {mutant.before}\n  + {mutant.after}"
