"""Sums a revision's slices by whole minutes, load strata and running requests for each replica. It judges nothing.

The load stratum (the work that waits on the picked pod) comes from the gateway. How many requests run on a replica is the
second half of a load, because each of them slows the others' prompts. It is the mean of a minute: requests with a first token
and no last one, divided by the replicas that were ready. Requests that wait do not count as running, so a revision that hangs does
not look busy. The ends of a class have the ratio RUNNING_FACTOR.

Whole answers wait until they end, and their prompts count in the load stratum until then, so all of them are in the class 0.

Requests without a first token have an age divided by the time that the gateway expected. `shift` converts it to seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Histogram
from pagefleet_contract.strata import QUEUED
from pagefleet_operator.domain.analysis.adjusted.memory import SETTLED_SECONDS
from pagefleet_operator.domain.analysis.adjusted.waiting import SILENT_SECONDS, Waiting
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.status.observation import RevisionReading, Slice

MINUTE = 60.0
RUNNING_FACTOR = math.sqrt(2.0)
SPREAD = 3.0  # the expected times of one load stratum differ by less
MAX_RUNNING_CLASS = 40  # a million requests in flight on a replica


@dataclass(frozen=True)
class StratumMinute:
    """The requests of one load stratum in a minute: measured ones in seconds, the others by age / expected time."""

    measured: Histogram = field(default_factory=dict)
    begin: Histogram = field(default_factory=dict)
    end: Histogram = field(default_factory=dict)
    unmeasured: Histogram = field(default_factory=dict)
    shift: float | None = None  # buckets from age / expected time to seconds; None: nothing was measured

    def decided(self, bound: float, shift: float | None) -> tuple[int, int]:
        """Return how many requests are slower than `bound` seconds, and how many are decided about.

        A request in flight counts in the minute in which its age has certainly passed the bound, and never again.
        """
        slow = sketch.above(self.measured, bound)
        quick = sketch.total(self.measured) - slow
        if shift is not None:
            limit = sketch.bucket_of(SPREAD * bound) - shift
            slow += sketch.beyond(self.unmeasured, limit)
            slow += sketch.beyond(self.end, limit) - sketch.beyond(self.begin, limit)
        hits = max(0, slow)
        return hits, quick + hits


@dataclass(frozen=True)
class Minute:
    """One revision in one minute. `running` is the class of its running requests for each replica.

    `prompts` are the strata of its prompts. In a load stratum above all of them the work is a queue, which moves slowly from
    one end of the stratum to the other: all requests of a minute meet the same.
    """

    start: float
    running: int
    strata: Mapping[str, StratumMinute]
    prompts: frozenset[str] = frozenset()

    def is_queue(self, stratum: str) -> bool:
        return bool(self.prompts) and stratum.removesuffix(QUEUED) not in self.prompts


def running_class(running: float, replicas: int) -> int:
    """The class of a number of running requests on so many replicas; 0 up to one request for each."""
    share = running / max(1, replicas)
    return min(MAX_RUNNING_CLASS, math.floor(math.log(share, RUNNING_FACTOR) + 1e-9)) if share > 1 else 0


def newest_complete(now: float) -> float:
    """The end of the newest minute whose slices have arrived."""
    return math.floor((now - SETTLED_SECONDS) / MINUTE) * MINUTE


def complete(
    slices: Sequence[Slice], reading: RevisionReading, since: float, now: float, *, whole: bool = False
) -> list[Minute]:
    """The minutes of a revision that begin at `since` or later and are complete, those without a measurement left out.

    They are of its streams, or of its `whole` answers.
    """
    first, last = math.ceil(since / MINUTE) * MINUTE, newest_complete(now)
    chosen = [
        piece
        for piece in slices
        if piece.revision == reading.hash and first - SILENT_SECONDS <= piece.start < last and piece.possible
        if piece.whole == whole or not piece.adjusted
    ]
    by_minute: dict[float, list[Slice]] = {}
    waiting = Waiting()
    for piece in sorted(chosen, key=lambda piece: piece.start):
        if piece.start < first:
            waiting.update(piece)
        else:
            by_minute.setdefault(math.floor(piece.start / MINUTE) * MINUTE, []).append(piece)
    minutes = [_minute(start, by_minute[start], waiting, reading) for start in sorted(by_minute)]
    if whole:
        minutes = [replace(minute, running=0) for minute in minutes]
    return [minute for minute in minutes if minute.strata]


def _minute(start: float, pieces: Iterable[Slice], waiting: Waiting, reading: RevisionReading) -> Minute:
    begin, running, prompts = waiting.total(), 0.0, set[str]()
    sums: dict[str, tuple[dict[int, int], dict[int, int], dict[int, int]]] = {}
    for piece in pieces:
        waiting.update(piece)
        running += (_requests(piece, "e2e") - _requests(piece, "ttft")) * piece.seconds / MINUTE
        if piece.requests or piece.in_flight:
            prompts.add(piece.stratum)
        for name, counts in piece.load.items():
            if name not in sums:
                sums[name] = {}, {}, {}
            for total, more in zip(sums[name], (counts.ttft, counts.relative, counts.unmeasured), strict=True):
                if more:
                    sketch.add_onto(total, more)
    end = waiting.total()
    strata = {
        name: StratumMinute(ttft, begin.get(name, {}), end.get(name, {}), unmeasured, _shift(ttft, relative))
        for name, (ttft, relative, unmeasured) in sums.items()
    }
    return Minute(start, running_class(running, _replicas(reading, start)), strata, frozenset(prompts))


def _replicas(reading: RevisionReading, time: float) -> int:
    """The ready pods that were ready at a time; all of them when none was."""
    pods = [pod for pod in reading.pods if pod.ready and not pod.terminating]
    pods += [spare.pod for spare in reading.spares if spare.pod.ready and not spare.pod.terminating]
    return sum(1 for pod in pods if pod.ready_since is not None and pod.ready_since <= time) or len(pods)


def _requests(piece: Slice, signal: str) -> int:
    """The requests in flight that lack a signal at the slice's end."""
    return sum(piece.in_flight.get(signal, {}).values())


def _shift(ttft: Histogram, relative: Histogram) -> float | None:
    if not ttft or not relative:
        return None
    return _mean(ttft) - _mean(relative)


def _mean(histogram: Histogram) -> float:
    return sum(bucket * count for bucket, count in histogram.items()) / sketch.total(histogram)
