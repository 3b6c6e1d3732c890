"""Measures one system once: all requests at once on a fresh process, or at a rate on one that is running."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from cpubench import client
from cpubench.measures import Answer, Measured, summarise
from cpubench.servers import Running, line, running, tail
from cpubench.systems import MODEL, System
from cpubench.workload import Request

TIMEOUT = 1800.0
QUIET = 15.0  # per cent of one core: what others may use without a run counting as disturbed
QUIET_WINDOW = 3.0
WARM_UP = [Request(tuple(range(1000, 1040)), 8), Request(tuple(range(2000, 2030)), 8)]


def await_quiet(quiet_timeout: float) -> None:
    """Wait until the rest of the machine is idle, at most `quiet_timeout` seconds."""
    end = time.monotonic() + quiet_timeout
    while time.monotonic() < end:
        before = _busy()
        time.sleep(QUIET_WINDOW)
        if 100 * (_busy() - before) / QUIET_WINDOW < QUIET:
            return


def measure(system: System, requests: Sequence[Request], log: Path) -> Measured:
    """Start, rest, warm up, run, end. Raises RuntimeError with the end of the system's log when it fails."""
    with running(system, log) as served:
        if system.streams:
            warm_up(served)
        return once(served, requests[: system.most], log)


@contextlib.contextmanager
def warmed(system: System, log: Path) -> Iterator[tuple[Running, Others]]:
    """A system that streams, ready and warmed up, and what others use from now on. Raises RuntimeError as `running`."""
    with running(system, log) as served:
        warm_up(served)
        yield served, Others(served)


def warm_up(served: Running) -> None:
    """Two short requests, one after the other: whatever is made at the first request is not measured."""
    for request in WARM_UP:
        asyncio.run(client.drive(served.url, MODEL, [request], TIMEOUT))


def once(served: Running, requests: Sequence[Request], log: Path, limit: float = TIMEOUT) -> Measured:
    """One run on a system that is ready. Raises RuntimeError when it fails, or takes more than `limit` seconds."""
    others = Others(served)
    return summarise(served.system.name, answers(served, requests, log, limit), served.measured(), others.share())


def answers(served: Running, requests: Sequence[Request], log: Path, limit: float = TIMEOUT) -> list[Answer]:
    """Ask for all of them at their times. Raises RuntimeError like `once`."""
    try:
        return (_streamed if served.system.streams else _in_batches)(served, requests, limit)
    except TimeoutError as error:
        raise RuntimeError(f"{served.system.name}: not done after {limit:.0f} s") from error
    except (ExceptionGroup, OSError, ValueError) as error:
        causes = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
        raise RuntimeError(f"{served.system.name}: {causes[0]!r}; its log ends:\n{tail(log)}") from error


def one_by_one(served: Running, requests: Sequence[Request], log: Path) -> list[Answer]:
    """Ask for each when the one before has ended. Raises RuntimeError like `once`."""
    return [answers(served, [request], log)[0] for request in requests]


class Others:
    """What neither the system nor this process has used of the machine since this was made."""

    def __init__(self, served: Running) -> None:
        self._served, self._start = served, time.monotonic()
        self._before = self._used()

    def share(self) -> float:
        """Return it as CPU use: 100 is one core busy."""
        return max(0.0, 100 * (self._used() - self._before) / (time.monotonic() - self._start))

    def _used(self) -> float:
        return _busy() - self._served.cpu_seconds() - _mine()


def _streamed(served: Running, requests: Sequence[Request], limit: float) -> list[Answer]:
    async def bounded() -> list[Answer]:
        async with asyncio.timeout(limit):
            return await client.drive(served.url, MODEL, requests, TIMEOUT)

    return asyncio.run(bounded())


def _in_batches(served: Running, requests: Sequence[Request], limit: float) -> list[Answer]:
    asked = {
        "prompts": [request.prompt for request in requests],
        "outputs": [request.output for request in requests],
        "temperature": max(request.temperature for request in requests),
    }
    if served.process.stdin is None:
        raise ValueError("the program has no standard input")
    served.process.stdin.write(json.dumps(asked) + "\n")
    served.process.stdin.flush()
    times = json.loads(line(served.process.stdout, limit))
    return [
        Answer(0.0, tuple(moments), len(request.prompt), request.output)
        for request, moments in zip(requests, times, strict=True)
    ]


def _busy() -> float:
    """CPU seconds that the whole machine has spent working, and those that the hypervisor took away."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait)


def _mine() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)
