"""Runs tests in a fork of this process, in which the modules and tests are imported already."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

START_SECONDS = 10.0  # processor time beside the tests' own
SLOWER = 5.0  # a changed program may need this many times the processor time of the unchanged one
WALL = 30.0  # seconds on the clock for each second of processor time, on a machine with other work


@dataclass
class Child:
    """A fork that answers through a pipe."""

    process: int
    pipe: int
    started: float = field(default_factory=time.monotonic)


def fork(work: Callable[[], object], seconds: float) -> Child:
    """Run `work` in a fork, with processor time for tests of `seconds`. It answers with the pickled value of `work`."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    process = os.fork()
    if process:
        os.close(writing)
        return Child(process, reading)
    os.close(reading)
    limit = math.ceil(START_SECONDS + SLOWER * seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(math.ceil(WALL * limit))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    try:
        answer = pickle.dumps(work())
    except BaseException:
        answer = pickle.dumps(traceback.format_exc())
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(answer)
    os._exit(0)


def answer(child: Child) -> object:
    """Wait for the end of a fork. None when it was ended by its limits."""
    with os.fdopen(child.pipe, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child.process, 0)
    return pickle.loads(text) if text else None


class _Failures:
    def __init__(self) -> None:
        self.first = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.first:
            self.first = report.nodeid


def run_tests(
    session: pytest.Session, items: list[pytest.Item], after: Callable[[pytest.Item, float], None] | None = None
) -> str:
    """Run the tests until one fails; return its name, "" when none does. `after` gets each one's processor seconds."""
    failures = _Failures()
    session.config.pluginmanager.register(failures)
    for item, following in zip(items, [*items[1:], None], strict=True):
        began = time.process_time()
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if after is not None:
            after(item, time.process_time() - began)
        if failures.first:
            with contextlib.suppress(Exception):
                session._setupstate.teardown_exact(None)
            break
    return failures.first
