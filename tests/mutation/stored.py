"""What earlier runs found out, as lines in build/mutation: a run that was stopped goes on where it was.

An outcome holds while the package, the tests' support and the tests that decided it are the same files: for a killed mutant
the file of the test that failed, for a survivor every file with a test that reaches it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from mutation.mutants import Mutant
from mutation.suites import ROOT, Suite, digest

FOLDER = ROOT / "build/mutation"


@dataclass(frozen=True)
class Trial:
    """A test of the unchanged package: its processor seconds and the statements it reaches, as (module, line)."""

    name: str
    seconds: float
    reached: frozenset[tuple[str, int]]

    @property
    def file(self) -> Path:
        return ROOT / self.name.partition("::")[0]


@dataclass(frozen=True)
class Outcome:
    """`by` is the test that failed first, "" for a survivor, or a word for how the process ended."""

    killed: bool
    by: str
    seconds: float


class Store:
    def __init__(self, name: str, suite: Suite) -> None:
        self._suite, self._sources = suite, suite.sources
        self._outcomes, self._trials = FOLDER / f"{name}.outcomes.jsonl", FOLDER / f"{name}.tests.jsonl"
        FOLDER.mkdir(parents=True, exist_ok=True)
        self._known = {line["mutant"]: line for line in _lines(self._outcomes)}

    def trials(self, file: Path) -> list[Trial] | None:
        """The tests of a file as measured, None where the file or the package is another now."""
        last = None
        for line in _lines(self._trials):
            if line["file"] == str(file.relative_to(ROOT)):
                last = line
        if last is None or last["valid"] != f"{self._sources} {digest([file])}":
            return None
        return [
            Trial(one["name"], one["seconds"], frozenset((module, line) for module, line in one["reached"]))
            for one in last["tests"]
        ]

    def put_trials(self, file: Path, trials: Iterable[Trial]) -> None:
        tests = [{**asdict(trial), "reached": sorted(trial.reached)} for trial in trials]
        valid = f"{self._sources} {digest([file])}"
        _append(self._trials, {"file": str(file.relative_to(ROOT)), "valid": valid, "tests": tests})

    def outcome(self, mutant: Mutant, trials: list[Trial]) -> Outcome | None:
        """The stored outcome, if it still holds. `trials` are the tests that would be run now."""
        line = self._known.get(_name(mutant))
        if line is None or line["valid"] != self._validity(line["by"], trials):
            return None
        return Outcome(line["killed"], line["by"], line["seconds"])

    def killer(self, mutant: Mutant) -> str:
        """The test that failed the last time, "" without one: it is tried first."""
        line = self._known.get(_name(mutant), {})
        return str(line.get("by", ""))

    def put_outcome(self, mutant: Mutant, trials: list[Trial], outcome: Outcome) -> None:
        line = {"mutant": _name(mutant), "valid": self._validity(outcome.by, trials), **asdict(outcome)}
        self._known[line["mutant"]] = line
        _append(self._outcomes, line)

    def _validity(self, by: str, trials: list[Trial]) -> str:
        """A survivor's outcome is about exactly these tests, that of a killed one about the test that failed."""
        names = sorted(trial.name for trial in trials if not by or trial.name == by) or [by]
        files = sorted({trial.file for trial in trials if trial.name in names} or {trial.file for trial in trials})
        tests = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
        return f"{self._sources} {digest(files)} {tests}"


def _name(mutant: Mutant) -> str:
    return "\n".join((*mutant.key, str(mutant.copy)))


def _lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _append(path: Path, line: object) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
