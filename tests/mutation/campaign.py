"""The pytest plugin that tries the mutants: one session collects the tests, each mutant runs in a fork of it."""

from __future__ import annotations

import importlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mutation import children, hook, patching
from mutation.mutants import Mutant, mutants
from mutation.progress import Progress, say
from mutation.stored import Outcome, Store, Trial
from mutation.suites import ROOT, Suite

AT_IMPORT = "the module's import"
LIMIT = "the limit of processor time"


class BaselineFailed(Exception):
    """The tests fail without any change."""


@dataclass
class Campaign:
    """`seconds` is the processor time of the tests that one mutant meets. `results` has the outcome of every mutant of the
    modules in `only` (all, where that is empty)."""

    name: str
    suite: Suite
    jobs: int
    seconds: float
    only: Sequence[str] = ()
    results: dict[Mutant, Outcome] = field(default_factory=dict)
    error: str = ""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            self.error = "the tests cannot be collected"
            return True
        try:
            self._run(session)
        except BaselineFailed as failure:
            self.error = str(failure)
        return True

    def _run(self, session: pytest.Session) -> None:
        items = {item.nodeid: item for item in session.items}
        store, sources = Store(self.name, self.suite), {}
        for module in self.suite.modules():
            importlib.import_module(module)
            sources[module] = patching.source_of(module)
        trials = self._measured(session, store, sources)
        chosen = [
            mutant
            for module, source in sources.items()
            if not self.only or module in self.only
            for mutant in mutants(module, source)
        ]
        progress, waiting = Progress(len(chosen), self.suite), []
        for mutant in chosen:
            tests = _ordered(_covering(mutant, trials), store.killer(mutant), self.seconds)
            known = store.outcome(mutant, tests)
            if known is None:
                waiting.append((mutant, tests))
            else:
                self.results[mutant] = known
                progress.known(mutant, known)
        # Those that need a fresh process are slow: they come last.
        waiting.sort(key=lambda pair: not pair[0].is_in_function)
        for mutant, tests, outcome in self._tried(session, items, sources, waiting):
            self.results[mutant] = outcome
            store.put_outcome(mutant, tests, outcome)
            progress.tried(mutant, outcome)

    def _measured(self, session: pytest.Session, store: Store, sources: dict[str, str]) -> list[Trial]:
        """Run the tests of each file once without a change, where no earlier run has."""
        files: dict[Path, list[pytest.Item]] = {}
        for item in session.items:
            files.setdefault(item.path, []).append(item)
        trials: list[Trial] = []
        for number, (file, items) in enumerate(files.items(), 1):
            known = store.trials(file)
            if known is None:
                say(f"without a change: {file.name} ({number} of {len(files)} files)")
                known = _measure(session, items, sources)
                store.put_trials(file, known)
            trials += known
        return trials

    def _tried(
        self,
        session: pytest.Session,
        items: dict[str, pytest.Item],
        sources: dict[str, str],
        waiting: list[tuple[Mutant, list[Trial]]],
    ) -> Iterator[tuple[Mutant, list[Trial], Outcome]]:
        """Try the mutants, `jobs` at a time, in the order in which they end."""
        running: dict[int, tuple[children.Child, Mutant, list[Trial]]] = {}
        queue = iter(waiting)
        while True:
            while len(running) < self.jobs and (following := next(queue, None)):
                mutant, tests = following
                if not tests:
                    yield mutant, tests, Outcome(False, "", 0.0)
                    continue
                work = _Work(session, [items[trial.name] for trial in tests], mutant, sources[mutant.module])
                child = children.fork(work, sum(trial.seconds for trial in tests))
                running[child.pipe] = (child, mutant, tests)
            if not running:
                return
            for pipe in select.select(list(running), [], [])[0]:
                child, mutant, tests = running.pop(pipe)
                yield mutant, tests, _outcome(children.answer(child))


@dataclass(frozen=True)
class _Work:
    """One mutant's tests, inside the fork. The answer is (first failing test, processor seconds)."""

    session: pytest.Session
    items: list[pytest.Item]
    mutant: Mutant
    source: str

    def __call__(self) -> tuple[str, float]:
        try:
            if self.mutant.is_in_function:
                patching.replace_code(self.mutant, self.source)
                return children.run_tests(self.session, self.items), _used()
        except LookupError:
            pass
        return self._fresh(), _used()

    def _fresh(self) -> str:
        """A change that runs with the import: the tests in a process of their own."""
        environment = {**os.environ, hook.VARIABLE: hook.value_of(self.mutant)}
        names = [item.nodeid for item in self.items]
        options = ["-x", "-q", "-p", "mutation.hook", "-p", "no:cacheprovider", "--tb=no", *hook.WARNINGS]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *names],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return ""
        failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED ")]
        return failed[0] if failed else AT_IMPORT


def _used() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _outcome(answer: object) -> Outcome:
    match answer:
        case None:
            return Outcome(True, LIMIT, 0.0)
        case (str() as failed, float() as seconds):
            return Outcome(bool(failed), failed, seconds)
    raise BaselineFailed(f"a fork ended with an error of its own: {answer}")


def _measure(session: pytest.Session, items: list[pytest.Item], sources: dict[str, str]) -> list[Trial]:
    def work() -> tuple[str, list[Trial]]:
        reached: set[tuple[str, int]] = set()
        trials: list[Trial] = []
        for module, source in sources.items():
            patching.record_statements(module, source, reached)

        def after(item: pytest.Item, seconds: float) -> None:
            trials.append(Trial(item.nodeid, seconds, frozenset(reached)))
            reached.clear()

        return children.run_tests(session, items, after), trials

    answer = children.answer(children.fork(work, 600.0))
    match answer:
        case ("", list() as trials):
            return trials
        case (str() as failed, list()):
            raise BaselineFailed(f"{failed} fails without any change")
    raise BaselineFailed(f"{items[0].path.name} ended: {answer}")


def _covering(mutant: Mutant, trials: list[Trial]) -> list[Trial]:
    """The tests that reach the mutant's statement. Outside of functions those of its module, or of the whole package."""
    if mutant.is_in_function:
        return [trial for trial in trials if (mutant.module, mutant.statement) in trial.reached]
    own = [trial for trial in trials if any(module == mutant.module for module, _ in trial.reached)]
    return own or [trial for trial in trials if trial.reached]


def _ordered(covering: list[Trial], killer: str, most: float) -> list[Trial]:
    """The test that killed it the last time, then the quick ones, as many as fit into `most` processor seconds."""
    chosen, seconds = [], 0.0
    for trial in sorted(covering, key=lambda trial: (trial.name != killer, trial.seconds)):
        seconds += trial.seconds
        if chosen and seconds > most:
            break
        chosen.append(trial)
    return chosen
