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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from pagefleet_operator.domain import sketch
from pagefleet_operator.domain.build.names import PORT
from pagefleet_operator.domain.observation import Slice
from pagefleet_operator.signals.bounded import TooLongError, body

TIMEOUT_SECONDS = 2.0
MOST_BYTES = 4 << 20
KEPT_SECONDS, MOST_SLICES, LEFT_SLICES = 72 * 3600.0, 12_000, 10_000  # as of the gateways' slices (windows.py)
HISTOGRAMS = {
    "pagefleet_time_to_first_token_seconds": "ttft",
    "pagefleet_e2e_request_latency_seconds": "e2e",
    "pagefleet_inter_token_latency_seconds": "itl",
    "pagefleet_request_queue_time_seconds": "queue",
}
FINISHED = "pagefleet_request_success_total"
FAILED_REASONS = ("error", "deadline")
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


@dataclass
class _Kept:
    slices: deque[Slice] = field(default_factory=deque)
    last: dict[str, Counts] = field(default_factory=dict)
    thinned: int = 0


def parse(text: str, now: float) -> Counts | None:
    """The counts of a metrics page; None when one is missing, not finite, negative or falls with its bound."""
    wanted = tuple(f"{name}_bucket" for name in HISTOGRAMS)
    lines = [line for line in text.splitlines() if line.startswith((*wanted, FINISHED))]
    buckets: dict[str, dict[float, float]] = {}
    finished = failed = 0.0
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                if not math.isfinite(sample.value) or sample.value < 0:
                    return None
                if sample.name == FINISHED:
                    finished += sample.value
                    failed += sample.value * (sample.labels.get("finished_reason") in FAILED_REASONS)
                elif sample.name.endswith("_bucket"):
                    bounds = buckets.setdefault(HISTOGRAMS[sample.name.removesuffix("_bucket")], {})
                    bound = float(sample.labels["le"])
                    bounds[bound] = bounds.get(bound, 0.0) + sample.value
    except (ValueError, KeyError):
        return None
    for bounds in buckets.values():
        values = [bounds[bound] for bound in sorted(bounds)]
        if math.inf not in bounds or values != sorted(values):
            return None
    return Counts(now, buckets, finished, failed) if set(buckets) == set(HISTOGRAMS.values()) else None


def difference(before: Counts, after: Counts, pod: Pod, offset: float) -> Slice | None:
    """What came between two readings; None after a restart, or when no request ended. `offset` in [0, 1) shifts which
    tokens are kept."""
    requests, failed = after.finished - before.finished, after.failed - before.failed
    if requests < 1 or failed < 0 or after.time <= before.time:
        return None
    latency: dict[str, dict[int, int]] = {}
    least: dict[str, dict[int, int]] = {}
    for signal, bounds in after.buckets.items():
        earlier = before.buckets[signal]
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
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        try:
            async with self._session.get(f"http://{pod.address}:{PORT}/metrics", timeout=timeout) as response:
                if response.status != 200:
                    return None
                return parse((await body(response, MOST_BYTES)).decode(errors="replace"), time.time())
        except (aiohttp.ClientError, TimeoutError, OSError, TooLongError) as error:
            log.debug("engine %s: %s", pod.address, error)
            return None
