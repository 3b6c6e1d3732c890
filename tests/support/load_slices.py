"""Slices of load-adjusted times for tests that count them by hand."""

from __future__ import annotations

from collections.abc import Mapping

from pagefleet_contract.strata import FREE_STRATA
from pagefleet_operator.domain.status.observation import LoadCounts, Slice

KNOWN = FREE_STRATA[3]
# 200 requests, whose quantiles of 50, 75, 90 and 95 % have the buckets 50, 75, 90 and 95.
TIMES = {**dict.fromkeys(range(1, 100), 2), 120: 2}


def piece(revision: str, start: float, relative: Mapping[int, int], waiting: Mapping[int, int] | None = None,
          stratum: str = KNOWN, pods: Mapping[str, Mapping[int, int]] | None = None) -> Slice:  # fmt: skip
    """A slice of one stratum; in seconds the times lie a bucket higher."""
    load = {stratum: LoadCounts(relative, waiting or {}, ttft={bucket + 1: own for bucket, own in relative.items()})}
    return Slice("g", start, 2.0, revision, "", 0, 0, load=load, pods=pods or {})


def arrivals(revision: str, start: float, count: int) -> Slice:
    return Slice("g", start, 2.0, revision, KNOWN, 0, 0, started=count)
