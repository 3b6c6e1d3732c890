"""The load-adjusted times of one revision in a slice, and their form in `/windows`. Pure.

A request's load-adjusted time is its time to first token, or that of a whole answer to its end, divided by the time that the
gateway expected at its pick. It is 1 for a request that took as long as the reference revision would have taken with the same
load on the pod. The buckets are those of the latencies, with the ratio in place of the seconds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pagefleet_contract.sketch import bucket_of


@dataclass(slots=True)
class StratumCounts:
    """The requests of one load stratum. `waiting` and `unmeasured` are by their age divided by the expected time."""

    relative: Counter[int] = field(default_factory=Counter)
    waiting: Counter[int] = field(default_factory=Counter)  # not measured at the slice's end
    unmeasured: Counter[int] = field(default_factory=Counter)  # ended without a measurement
    ttft: Counter[int] = field(default_factory=Counter)  # of the requests in `relative`, in seconds

    def document(self) -> dict[str, object]:
        tables = {
            "relative": self.relative,
            "waiting": self.waiting,
            "unmeasured": self.unmeasured,
            "ttft": self.ttft,
        }
        return {name: histogram(counts) for name, counts in tables.items() if counts}


@dataclass(slots=True)
class AdjustedCounts:
    """The load-adjusted times of a revision's streams or of its whole answers in a slice, by load stratum, and of some reference
    pods by their names."""

    strata: dict[str, StratumCounts] = field(default_factory=dict)
    pods: dict[str, Counter[int]] = field(default_factory=dict)

    def stratum(self, name: str) -> StratumCounts:
        counts = self.strata.get(name)
        if counts is None:
            counts = self.strata[name] = StratumCounts()
        return counts

    def add_time(self, stratum: str, expected: float, seconds: float, pod: str) -> None:
        """Count a measured request. `pod` is the sampled pod that alone had the request, "" for none."""
        counts, bucket = self.stratum(stratum), bucket_of(seconds / expected)
        counts.relative[bucket] += 1
        counts.ttft[bucket_of(seconds)] += 1
        if pod:
            self.pods.setdefault(pod, Counter())[bucket] += 1

    def add_waiting(self, stratum: str, expected: float, age: float) -> None:
        self.stratum(stratum).waiting[bucket_of(max(age, 0.0) / expected)] += 1

    def add_unmeasured(self, stratum: str, expected: float, age: float) -> None:
        self.stratum(stratum).unmeasured[bucket_of(max(age, 0.0) / expected)] += 1

    def document(self, start: int, revision: str, load: str, pods: str) -> dict[str, object]:
        """Return them under these two names."""
        document: dict[str, object] = {
            "start": start,
            "revision": revision,
            "stratum": "",
            "requests": 0,
            "errors": 0,
            load: {name: counts.document() for name, counts in sorted(self.strata.items())},
        }
        return document | (
            {pods: {name: histogram(self.pods[name]) for name in sorted(self.pods)}} if self.pods else {}
        )


def histogram(counts: Counter[int]) -> dict[str, int]:
    return {str(bucket): count for bucket, count in sorted(counts.items())}
