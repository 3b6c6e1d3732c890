"""Engines' own latency histograms as slices: what was added between two scrapes of a pod.

A counter that went back (a restart) makes a gap, never a negative number. The tokens of one answer are not
independent, so inter-token latencies are thinned to as many as requests ended in the same time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp
from prometheus_client.samples import Sample

from pagefleet_operator.domain import sketch
from pagefleet_operator.domain.observation import Slice
from pagefleet_operator.domain.runtimes.metrics import OURS, Engine, EngineMetrics, selector
from pagefleet_operator.signals import page
from pagefleet_operator.signals.bounded import TooLongError, body

TIMEOUT_SECONDS = 2.0
MOST_BYTES = 4 << 20
KEPT_SECONDS, MOST_SLICES, LEFT_SLICES = 72 * 3600.0, 12_000, 10_000  # as of the gateways' slices (windows.py)
HISTOGRAMS = ("ttft", "e2e", "itl", "queue")
GOLDEN = (math.sqrt(5) - 1) / 2
Key = tuple[str, str]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Counts:
    """Cumulative counts of one pod at `time`: by signal {upper bound in seconds: requests at most that slow}."""

    time: float
    buckets: Mapping[str, Mapping[float, float]]
    finished: float
    failed: float


@dataclass(frozen=True)
class Pod:
    name: str
    address: str
    revision: str
    engine: Engine = field(default_factory=Engine)


@dataclass
class _Kept:
    slices: deque[Slice] = field(default_factory=deque)
    last: dict[str, Counts] = field(default_factory=dict)
    thinned: int = 0


def parse(text: str, now: float, metrics: EngineMetrics = OURS) -> Counts | None:
    """The counts of a metrics page; None when one is missing, not finite, negative or falls with its bound."""
    named = {signal: name for signal in HISTOGRAMS if (name := getattr(metrics, signal))}
    ended = [[selector(words) for words in entries] for entries in (metrics.finished, metrics.failed)]
    names = (f"{name}_bucket" for name in named.values())
    try:
        found = page.samples(text, (*names, *(entry.name for entries in ended for entry in entries)))
        finished, failed = (sum(page.number(found, entry) or 0.0 for entry in entries) for entries in ended)
        buckets = {signal: _cumulative(found.get(f"{name}_bucket", ())) for signal, name in named.items()}
    except (ValueError, KeyError):
        return None
    return Counts(now, buckets, finished, failed) if buckets and all(buckets.values()) else None


def _cumulative(samples: Iterable[Sample]) -> dict[float, float]:
    """A histogram's series summed up, by upper bound; {} without any. Raises ValueError for what is no histogram."""
    bounds: dict[float, float] = {}
    for sample in samples:
        if not math.isfinite(sample.value) or sample.value < 0:
            raise ValueError(f"{sample.name} is not a finite number that is not negative")
        bound = float(sample.labels["le"])
        bounds[bound] = bounds.get(bound, 0.0) + sample.value
    values = [bounds[bound] for bound in sorted(bounds)]
    if bounds and (math.inf not in bounds or values != sorted(values)):
        raise ValueError("a histogram's counts fall with its bounds, or it has no +Inf")
    return bounds


def difference(before: Counts, after: Counts, pod: Pod, offset: float) -> Slice | None:
    """What came between two readings; None after a restart, or when no request ended. `offset` in [0, 1) shifts which
    tokens are kept."""
    requests, failed = after.finished - before.finished, after.failed - before.failed
    if requests < 1 or failed < 0 or after.time <= before.time:
        return None
    latency: dict[str, dict[int, int]] = {}
    least: dict[str, dict[int, int]] = {}
    for signal, bounds in after.buckets.items():
        earlier = before.buckets.get(signal, {})
        if set(earlier) != set(bounds):
            return None
        added = _added(earlier, bounds)
        if added is None:
            return None
        share = min(1.0, requests / max(1.0, sum(count for _, _, count in added))) if signal == "itl" else 1.0
        latency[signal], least[signal] = _sketched(added, share, offset)
    return Slice(pod.name, before.time, after.time - before.time, pod.revision, "", int(requests), int(failed),
                 latency, least)  # fmt: skip


def _added(before: Mapping[float, float], after: Mapping[float, float]) -> list[tuple[float, float, float]] | None:
    """(lower bound, upper bound, new counts) of each bucket; None when a count went back."""
    result, low, passed = [], 0.0, 0.0
    for bound in sorted(after):
        total = after[bound] - before[bound]
        if total < passed:
            return None
        result.append((low, bound, total - passed))
        low, passed = bound, total
    return result


def _sketched(
    added: Sequence[tuple[float, float, float]], share: float, offset: float
) -> tuple[dict[int, int], dict[int, int]]:
    """Log buckets by upper and by lower bounds, thinned evenly to `share`."""
    upper: dict[int, int] = {}
    lower: dict[int, int] = {}
    total, kept = 0.0, 0
    for low, high, count in added:
        total += count
        number = math.floor(total * share + (offset if share < 1 else 1e-9)) - kept
        kept += number
        if number:
            most = sketch.index(high if math.isfinite(high) else 2 * low)
            upper[most] = upper.get(most, 0) + number
            lower[sketch.index(low)] = lower.get(sketch.index(low), 0) + number
    return upper, lower


class EngineWindows:
    """The engines' slices of each service whose rollout is judged."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._kept: dict[Key, _Kept] = {}

    async def read(self, pods: Sequence[Pod], namespace: str, service: str) -> tuple[Slice, ...] | None:
        """None when no pod answered, or one of some revision did not: a silent pod must not look like a good one."""
        kept = self._kept.setdefault((namespace, service), _Kept())
        found = await asyncio.gather(*(self._fetch(pod) for pod in pods))
        for pod, counts in zip(pods, found, strict=True):
            if counts is not None:
                self._add(kept, pod, counts)
        for name in set(kept.last) - {pod.name for pod in pods}:
            del kept.last[name]
        while kept.slices and kept.slices[0].start < time.time() - KEPT_SECONDS:
            kept.slices.popleft()
        if len(kept.slices) > MOST_SLICES:
            kept.slices = deque(list(kept.slices)[-LEFT_SLICES:])
        return tuple(kept.slices) if pods and None not in found else None

    def forget(self, namespace: str, service: str) -> None:
        self._kept.pop((namespace, service), None)

    def _add(self, kept: _Kept, pod: Pod, counts: Counts) -> None:
        before = kept.last.get(pod.name)
        if before is None or counts.finished < before.finished:
            kept.last[pod.name] = counts
            return
        kept.thinned += 1
        piece = difference(before, counts, pod, kept.thinned * GOLDEN % 1.0)
        if piece is not None:
            kept.slices.append(piece)
            kept.last[pod.name] = counts

    async def _fetch(self, pod: Pod) -> Counts | None:
        metrics = pod.engine.metrics
        if metrics is None:
            return None
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        try:
            url = f"http://{pod.address}:{pod.engine.port}{metrics.path}"
            async with self._session.get(url, timeout=timeout) as response:
                if response.status != 200:
                    return None
                return parse((await body(response, MOST_BYTES)).decode(errors="replace"), time.time(), metrics)
        except (aiohttp.ClientError, TimeoutError, OSError, TooLongError) as error:
            log.debug("engine %s: %s", pod.address, error)
            return None
