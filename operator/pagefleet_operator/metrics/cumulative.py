"""Cumulative latency histograms as slices: what was added between two readings of a pod. No I/O.

A counter that went back (a restart) makes a gap, never a negative number, and so does a long silence, after which a
restart might be hidden. The tokens of one answer are not independent, so inter-token latencies are thinned to as many as
requests ended in the same time.
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
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.metrics import metrics_page
from pagefleet_operator.metrics.metrics_page import Found

KEPT_SECONDS, MOST_SLICES, LEFT_SLICES = 72 * 3600.0, 12_000, 10_000  # as of the gateways' slices (windows.py)
LONGEST_GAP = 90.0  # seconds between two readings of a pod that are still compared
GOLDEN = (math.sqrt(5) - 1) / 2


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


def parse(text: str, now: float, metrics: EngineMetrics = OURS, signals: Collection[str] = HISTOGRAMS) -> Counts | None:
    """The counts of a metrics page; None when one is missing, not finite, negative or falls with its bound."""
    try:
        return counts(metrics_page.samples(text, names(metrics, signals)), now, metrics, signals)
    except (ValueError, KeyError):
        return None


def names(metrics: EngineMetrics, signals: Collection[str]) -> tuple[str, ...]:
    """What series are read for these signals, of those that the engine tells."""
    ended = (selector(words).name for words in (*metrics.finished, *metrics.failed))
    return (*(f"{chosen.name}_bucket" for chosen in _histograms(metrics, signals).values()), *ended)


def counts(found: Found, now: float, metrics: EngineMetrics, signals: Collection[str]) -> Counts:
    """Raises ValueError for numbers that cannot be, or a histogram that is not there."""
    finished, failed = (
        sum(metrics_page.number(found, selector(words)) or 0.0 for words in entries)
        for entries in (metrics.finished, metrics.failed)
    )
    buckets = {}
    for signal, chosen in _histograms(metrics, signals).items():
        series = [one for one in found.get(f"{chosen.name}_bucket", ()) if _meant(one, chosen)]
        buckets[signal] = cumulative(series)
        if not buckets[signal]:
            raise ValueError(f"there is no {chosen.name}_bucket")
    if not buckets and not any(found.get(selector(words).name) for words in metrics.finished):
        raise ValueError("there is nothing that counts requests")
    return Counts(now, buckets, finished, failed)


def _histograms(metrics: EngineMetrics, signals: Collection[str]) -> dict[str, Selector]:
    return {
        signal: selector(words) for signal in HISTOGRAMS if signal in signals and (words := getattr(metrics, signal))
    }


def _meant(sample: Sample, chosen: Selector) -> bool:
    return not chosen.label or sample.labels.get(chosen.label) == chosen.value


def cumulative(samples: Iterable[Sample], unit: float = 1.0) -> dict[float, float]:
    """A histogram's series summed up, by upper bound in units of `unit` seconds; {} without any. Raises ValueError for what
    is no histogram."""
    bounds: dict[float, float] = {}
    for sample in samples:
        if not math.isfinite(sample.value) or sample.value < 0:
            raise ValueError(f"{sample.name} is not a finite number that is not negative")
        bound = float(sample.labels["le"]) * unit
        bounds[bound] = bounds.get(bound, 0.0) + sample.value
    values = [bounds[bound] for bound in sorted(bounds)]
    if bounds and (math.inf not in bounds or values != sorted(values)):
        raise ValueError("a histogram's counts fall with its bounds, or it has no +Inf")
    return bounds


def went_back(before: Counts, after: Counts) -> bool:
    """Whether the second reading cannot follow the first: the pod was started anew in between."""
    if after.time <= before.time or after.finished < before.finished or after.failed < before.failed:
        return True
    if set(before.buckets) != set(after.buckets):
        return True
    return any(
        set(earlier) != set(after.buckets[signal]) or _added(earlier, after.buckets[signal]) is None
        for signal, earlier in before.buckets.items()
    )


def difference(before: Counts, after: Counts, pod: Pod, offset: float) -> Slice | None:
    """What came between two readings; None after a restart, or when no request ended. `offset` in [0, 1) shifts which
    tokens are kept."""
    requests, failed = after.finished - before.finished, after.failed - before.failed
    if requests < 1 or went_back(before, after):
        return None
    latency: dict[str, dict[int, int]] = {}
    edged: dict[str, Edged] = {}
    for signal, bounds in after.buckets.items():
        added = _added(before.buckets[signal], bounds) or ()
        share = min(1.0, requests / max(1.0, sum(added))) if signal == "itl" else 1.0
        edged[signal] = Edged(shared(tuple(sorted(bounds))), _thinned(added, share, offset))
        latency[signal] = _sketched(edged[signal])
    return Slice(pod.name, before.time, after.time - before.time, pod.revision, "", int(requests), int(failed),
                 latency, edged)  # fmt: skip


def _added(before: Mapping[float, float], after: Mapping[float, float]) -> list[float] | None:
    """New counts of each bucket, by ascending bounds; None when a count went back."""
    result, passed = [], 0.0
    for bound in sorted(after):
        total = after[bound] - before[bound]
        if total < passed:
            return None
        result.append(total - passed)
        passed = total
    return result


def _thinned(added: Sequence[float], share: float, offset: float) -> dict[int, int]:
    """Counts by place, thinned evenly to `share`."""
    kept: dict[int, int] = {}
    total, taken = 0.0, 0
    for place, count in enumerate(added):
        total += count
        number = math.floor(total * share + (offset if share < 1 else 1e-9)) - taken
        taken += number
        if number:
            kept[place] = number
    return kept


def _sketched(edged: Edged) -> dict[int, int]:
    """Log buckets by upper bounds; what is above the last finite one counts as twice that."""
    result: dict[int, int] = {}
    for place, count in edged.counts.items():
        high = edged.bounds[place]
        index = sketch.bucket_of(high if math.isfinite(high) else 2 * edged.lower(place))
        result[index] = result.get(index, 0) + count
    return result


@dataclass
class Past:
    """One service's slices, and the last reading of each pod: what the next one is compared with, and when it was read."""

    slices: deque[Slice] = field(default_factory=deque)
    last: dict[str, tuple[Counts, float]] = field(default_factory=dict)
    thinned: int = 0

    def add(self, pod: Pod, found: Counts) -> None:
        known = self.last.get(pod.name)
        if known is None or found.time - known[1] > LONGEST_GAP or went_back(known[0], found):
            self.last[pod.name] = (found, found.time)
            return
        before = known[0]
        self.thinned += 1
        piece = difference(before, found, pod, self.thinned * GOLDEN % 1.0)
        if piece is not None:
            self.slices.append(piece)
        idle = found.finished == before.finished and found.buckets == before.buckets
        self.last[pod.name] = (found if piece is not None or idle else before, found.time)

    def trim(self, now: float, pods: Collection[str]) -> None:
        """Forget what is old, and the readings of pods that are gone."""
        for name in set(self.last) - set(pods):
            del self.last[name]
        while self.slices and self.slices[0].start < now - KEPT_SECONDS:
            self.slices.popleft()
        if len(self.slices) > MOST_SLICES:
            self.slices = deque(list(self.slices)[-LEFT_SLICES:])
