"""Traces of rollouts: what each request met and how it ended, as JSON lines that any judge can read (bench/README.md).

In a trace the weights follow a schedule, whatever anybody decides, so that every judge sees the same requests. The operator
decides beside it.
"""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.rolloutbench.deciding import spec_of
from bench.rolloutbench.scenario import Scenario
from bench.rolloutbench.world import World

FORMAT, VERSION = "pagefleet-rollout-trace", 1
# (seconds since the canary's first traffic, percent of the requests on the canary)
SCHEDULE = ((0.0, 10), (300.0, 50))
SECONDS = 600.0
BASELINE = "baseline"


@dataclass(frozen=True)
class TracedRequest:
    """One request. Times are seconds since the canary's first traffic, so that those of the history are below 0.

    `ttft` is None for a request without a first token, `end` for one that had not ended when the trace did. `outcome` is
    answered, failed, left (its client gave up) or open.
    """

    at: float
    revision: str  # stable | canary | baseline
    pod: str
    tokens: int  # of the prompt after its shared prefix
    ttft: float | None
    end: float | None
    outcome: str


@dataclass(frozen=True)
class Trace:
    """A rollout. `onset` is None for a canary that is no worse; `decided` is when our operator rolled back, None: never."""

    name: str
    seed: int
    onset: float | None
    max_increase: float
    max_error_rate: float
    schedule: tuple[tuple[float, float], ...]
    requests: tuple[TracedRequest, ...]
    decided: float | None = None

    def lines(self) -> Iterator[str]:
        """Yield the trace as JSON lines: the head, then the requests in the order in which they came."""
        head = {"format": FORMAT, "version": VERSION, **asdict(self)}
        del head["requests"], head["decided"]
        yield json.dumps(head)
        for request in self.requests:
            yield json.dumps(asdict(request))


def read(lines: Iterable[str]) -> Trace:
    """Read a trace. Raises ValueError for another format."""
    rows = iter(lines)
    head = json.loads(next(rows))
    if head.pop("format", None) != FORMAT or head.pop("version", None) != VERSION:
        raise ValueError(f"this is no trace of format {FORMAT}, version {VERSION}")
    head["schedule"] = tuple((float(at), float(weight)) for at, weight in head["schedule"])
    return Trace(requests=tuple(TracedRequest(**json.loads(row)) for row in rows), **head)


def play(scenario: Scenario, seed: int) -> Trace:
    """Play a scenario by the schedule."""
    gc.disable()  # nothing of a world is garbage before its end
    try:
        return ScheduledWorld(scenario, seed).trace(seed)
    finally:
        gc.enable()


def save(trace: Trace, folder: Path) -> Path:
    """Write a trace to a file of its own."""
    path = folder / f"{trace.name.replace('/', '-')}-{trace.seed}.jsonl"
    path.write_text("\n".join(trace.lines()) + "\n")
    return path


class ScheduledWorld(World):
    """A world in which weights and replicas follow the schedule. With `scenario.baseline` a fresh group of the stable revision
    gets what the canary gets."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        super().__init__(scenario, seed)
        self.recording, self.decided = True, None
        # At any time within a slice.
        self._weight, self._first = -1, scenario.history + random.Random(seed).uniform(0, 2)

    def trace(self, seed: int) -> Trace:
        """Run to the end of the schedule."""
        self.run(until=self._first + SECONDS)
        scenario, origin = self.scenario, self._first
        onset = scenario.regression.onset if scenario.bad else None
        requests = tuple(self._traced(request, origin) for request in self.requests)
        decided = None if self.decided is None else self.decided - origin
        return Trace(scenario.name, seed, onset, 0.15, 0.01, SCHEDULE, requests, decided)

    def _traced(self, request: Any, origin: float) -> TracedRequest:
        ttft = None if request.first is None else round(request.first - request.at, 6)
        end = None if request.end is None else round(request.end - origin, 6)
        names = {self.stable: "stable", self.canary: "canary"}
        engine = request.engine
        revision = names.get(engine.group, engine.group)
        pod = f"{revision}-{engine.name.rsplit('-', 1)[1]}"
        at = round(request.at - origin, 6)
        return TracedRequest(at, revision, pod, round(request.tokens), ttft, end, request.outcome or "open")

    def _start(self) -> None:
        super()._start()
        for after, weight in SCHEDULE:
            self._schedule(self._first + after, lambda now, weight=weight: self._set_weight(weight))

    def _begin_rollout(self, now: float) -> None:
        """Leave the beginning to the schedule."""

    def _set_weight(self, weight: int) -> None:
        first, self._weight = self._weight < 0, weight
        if first:
            self.operator.edit(spec_of(self.scenario, 2))
            self._decide(self.now)
        else:
            self._follow()

    def _decide(self, now: float) -> None:
        """Let the operator decide until it has a verdict. Its decisions change neither weights nor replicas."""
        status = self.operator.status
        over = self.decided is not None or bool(self.canary and status.stable == self.canary)
        # A baseline is none of our operator's: it only names the canary there.
        if not over and not (self.scenario.baseline and self.canary):
            super()._decide(now)

    def _follow(self) -> None:
        if self._weight < 0:
            super()._follow()
            return
        status = self.operator.status
        self.canary = self.canary or status.canary
        if status.rejected and self.decided is None:
            self.decided = self.now
        if self.since is None:
            self.since = self.now
        size = -(-self.scenario.replicas * self._weight // 100)
        groups = {self.stable: self.scenario.replicas, self.canary: size}
        weights = {self.stable: 100 - self._weight, self.canary: self._weight}
        if self.scenario.baseline:
            groups[BASELINE] = size
            weights |= {self.stable: 100 - 2 * self._weight, BASELINE: self._weight}
        self._show(weights, self._follow_replicas(groups))


def load_all(folder: Path) -> Iterator[Trace]:
    """Read the traces of a folder."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open() as lines:
            yield read(lines)
