"""Turns cumulative latency histograms into slices: the counts that were added between two readings of a pod. No I/O.

A counter that fell (a restart) makes a gap, never a negative number. A long silence makes a gap as well, because it may
hide a restart. The tokens of one answer are not independent, so inter-token latencies are thinned to the number of
requests that ended in the same time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.samples import Sample

from pagefleet_contract import sketch
from pagefleet_contract.engine_metrics import HISTOGRAMS, OURS, Engine, EngineMetrics, Selector, selector
from pagefleet_operator.domain.base.edged import Edged, shared
from pagefleet_operator.domain.spec.schema.guard_signals import GUARD_SIGNALS
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.metrics import metrics_page
from pagefleet_operator.metrics.metrics_page import Samples

# As for the gateways' slices (gateway_windows.py).
RETAINED_SECONDS, MAX_SLICES, TRIMMED_SLICES = 72 * 3600.0, 12_000, 10_000
MAX_GAP_SECONDS = 90.0  # between two readings of a pod that are compared
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Counts:
    """Cumulative counts of one pod at `time`.

    `buckets` has for each signal {upper bound in seconds: requests that took at most so long}.
    """

    time: float
    buckets: Mapping[str, Mapping[float, float]]
    finished: float
    failed: float


@dataclass(frozen=True)
class Pod:
    """A pod whose histograms are read."""

    name: str
    address: str
    revision: str
    engine: Engine = field(default_factory=Engine)


def parse(text: str, now: float, metrics: EngineMetrics = OURS, signals: Collection[str] = HISTOGRAMS) -> Counts | None:
    """The counts of a metrics page; None when a count is missing, not finite, negative, or falls with its bound."""
    try:
        return counts(metrics_page.samples(text, names(metrics, signals)), now, metrics, signals)
    except (ValueError, KeyError):
        return None


def names(metrics: EngineMetrics, signals: Collection[str]) -> tuple[str, ...]:
    """The series that are read for these signals, among those that the engine reports."""
    ended = (selector(words).name for words in (*metrics.finished, *metrics.failed))
    return (*(f"{chosen.name}_bucket" for chosen in _histograms(metrics, signals).values()), *ended)


def counts(page: Samples, now: float, metrics: EngineMetrics, signals: Collection[str]) -> Counts:
    """The counts of a page. Raises ValueError for impossible numbers and for a missing histogram."""
    finished, failed = (
        sum(metrics_page.number(page, selector(words)) or 0.0 for words in entries)
        for entries in (metrics.finished, metrics.failed)
    )
    buckets = {}
    for signal, chosen in _histograms(metrics, signals).items():
        series = [one for one in page.get(f"{chosen.name}_bucket", ()) if _selected(one, chosen)]
        buckets[signal] = cumulative(series)
        if not buckets[signal]:
            raise ValueError(f"there is no {chosen.name}_bucket")
    if not buckets and not any(page.get(selector(words).name) for words in metrics.finished):
        raise ValueError("there is nothing that counts requests")
    return Counts(now, buckets, finished, failed)


def _histograms(metrics: EngineMetrics, signals: Collection[str]) -> dict[str, Selector]:
    return {
        signal: selector(words) for signal in HISTOGRAMS if signal in signals and (words := getattr(metrics, signal))
    }


def _selected(sample: Sample, chosen: Selector) -> bool:
    return not chosen.label or sample.labels.get(chosen.label) == chosen.value


def cumulative(samples: Iterable[Sample], unit: float = 1.0) -> dict[float, float]:
    """Sum up the series of a histogram, by upper bound in units of `unit` seconds; {} without series.

    Raises ValueError for series that are no histogram.
    """
    bounds: dict[float, float] = {}
    for sample in samples:
        if not 0 <= sample.value <= metrics_page.LARGEST:
            raise ValueError(f"{sample.name} is no number from 0 to {metrics_page.LARGEST:g}")
        bound = float(sample.labels["le"]) * unit
        if not bound >= 0:
            raise ValueError(f"{sample.name} has the bound {sample.labels['le']}, and no latency is below zero")
        bounds[bound] = bounds.get(bound, 0.0) + sample.value
    values = [bounds[bound] for bound in sorted(bounds)]
    if bounds and (math.inf not in bounds or values != sorted(values)):
        raise ValueError("a histogram's counts fall with its bounds, or it has no +Inf")
    return bounds


def went_back(before: Counts, after: Counts) -> bool:
    """Whether the second reading cannot follow the first, because the pod was started again in between."""
    if after.time <= before.time or after.finished < before.finished or after.failed < before.failed:
        return True
    if set(before.buckets) != set(after.buckets):
        return True
    return any(
        set(earlier) != set(after.buckets[signal]) or _added(earlier, after.buckets[signal]) is None
        for signal, earlier in before.buckets.items()
    )


def difference(before: Counts, after: Counts, pod: Pod, offset: float) -> Slice | None:
    """The counts that came between two readings; None after a restart, or when no request ended.

    `offset` in [0, 1) shifts the choice of the tokens that stay after thinning.
    """
    requests, failed = after.finished - before.finished, after.failed - before.failed
    if requests < 1 or went_back(before, after):
        return None
    latency: dict[str, dict[int, int]] = {}
    edged: dict[str, Edged] = {}
    for signal, bounds in after.buckets.items():
        added = _added(before.buckets[signal], bounds) or ()
        share = min(1.0, requests / max(1.0, sum(added))) if GUARD_SIGNALS[signal].per_token else 1.0
        edged[signal] = Edged(shared(tuple(sorted(bounds))), _thinned(added, share, offset))
        latency[signal] = _sketched(edged[signal])
    return Slice(pod.name, before.time, after.time - before.time, pod.revision, "", int(requests), int(failed),
                 latency, edged)  # fmt: skip


def _added(before: Mapping[float, float], after: Mapping[float, float]) -> list[float] | None:
    """The new counts of each bucket, by ascending bounds; None when a count fell."""
    result, passed = [], 0.0
    for bound in sorted(after):
        total = after[bound] - before[bound]
        if total < passed:
            return None
        result.append(total - passed)
        passed = total
    return result


def _thinned(added: Sequence[float], share: float, offset: float) -> dict[int, int]:
    """Counts by the place of their bucket, thinned evenly to `share`."""
    thinned: dict[int, int] = {}
    total, taken = 0.0, 0
    for place, count in enumerate(added):
        total += count
        number = math.floor(total * share + (offset if share < 1 else 1e-9)) - taken
        taken += number
        if number:
            thinned[place] = number
    return thinned


def _sketched(edged: Edged) -> dict[int, int]:
    """Sort the counts into log buckets by their upper bounds; twice the last finite bound stands for the infinite one."""
    result: dict[int, int] = {}
    for place, count in edged.counts.items():
        high = edged.bounds[place]
        index = sketch.bucket_of(high if math.isfinite(high) else 2 * edged.lower(place))
        result[index] = result.get(index, 0) + count
    return result


@dataclass
class Past:
    """One service's slices, and for each pod the reading that the next one is compared with and the time of the last one."""

    slices: deque[Slice] = field(default_factory=deque)
    last: dict[str, tuple[Counts, float]] = field(default_factory=dict)
    thinned: int = 0

    def add(self, pod: Pod, reading: Counts) -> None:
        """Add a reading of a pod: the slice of the counts that are new since the reading before."""
        known = self.last.get(pod.name)
        if known is None or reading.time - known[1] > MAX_GAP_SECONDS or went_back(known[0], reading):
            self.last[pod.name] = (reading, reading.time)
            return
        before = known[0]
        self.thinned += 1
        piece = difference(before, reading, pod, self.thinned * GOLDEN % 1.0)
        if piece is not None:
            self.slices.append(piece)
        idle = reading.finished == before.finished and reading.buckets == before.buckets
        self.last[pod.name] = (reading if piece is not None or idle else before, reading.time)

    def trim(self, now: float, pods: Collection[str]) -> None:
        """Drop old slices and the readings of pods that have been gone for long. A pod that is not ready for a moment still
        counts what ended meanwhile: otherwise one that fails again and again would hide its slow requests."""
        for name in set(self.last) - set(pods):
            if abs(now - self.last[name][1]) > MAX_GAP_SECONDS:
                del self.last[name]
        while self.slices and self.slices[0].start < now - RETAINED_SECONDS:
            self.slices.popleft()
        while self.slices and self.slices[-1].start > now + MAX_GAP_SECONDS:  # the clock was set back
            self.slices.pop()
        if len(self.slices) > MAX_SLICES:
            self.slices = deque(list(self.slices)[-TRIMMED_SLICES:])
