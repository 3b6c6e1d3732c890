"""The latency windows of this gateway pod: closed slices per service, revision and stratum, stored for an hour.

Decides which slice a request counts in; never changes a closed slice. Times are Unix seconds.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import takewhile

import msgspec

from pagefleet_contract.sketch import bucket_of
from pagefleet_gateway.cluster.state import ServiceKey

SLICE_SECONDS = 2
CLOSE_SECONDS = 2  # a slice is closed this long after its end
RETENTION_SECONDS = 3600


@dataclass(frozen=True)
class Outcome:
    """One request that ended and counts. `ttft` is None when it did not stream."""

    namespace: str
    service: str
    revision: str
    stratum: str
    ended: float  # Unix seconds
    failed: bool
    ttft: float | None  # seconds
    e2e: float  # seconds
    tokens: int | None = None  # output tokens; None: the engine did not report them

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None when it did not stream or its tokens are not known."""
        if self.ttft is None or self.tokens is None or self.tokens < 2:
            return None
        return max(self.e2e - self.ttft, 0.0) / (self.tokens - 1)


@dataclass(slots=True)
class _Slice:
    requests: int = 0
    errors: int = 0
    arrivals: int = 0
    tokens: int = 0
    with_tokens: int = 0  # requests whose output tokens are known
    ttft: Counter[int] = field(default_factory=Counter)
    e2e: Counter[int] = field(default_factory=Counter)
    tpot: Counter[int] = field(default_factory=Counter)

    def document(self, start: int, revision: str, stratum: str) -> dict[str, object]:
        if not revision:
            head: dict[str, object] = {"start": start, "revision": "", "stratum": "", "arrivals": self.arrivals}
            return head | {"requests": 0, "errors": 0}
        document: dict[str, object] = {
            "start": start,
            "revision": revision,
            "stratum": stratum,
            "requests": self.requests,
            "errors": self.errors,
            "ttft": _histogram(self.ttft),
            "e2e": _histogram(self.e2e),
        }
        # Without a request whose tokens are known, these values are unknown and not 0.
        return document | ({"tpot": _histogram(self.tpot), "tokens": self.tokens} if self.with_tokens else {})


class Windows:
    """Slices by service. The clock may step back: the latest time so far decides which slices are closed.

    A closed slice is stored as its JSON, which takes a sixth to an eighth of its counters' size: hundreds of busy
    services have 1,800 slices each.
    """

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self._open: dict[ServiceKey, dict[int, dict[tuple[str, str], _Slice]]] = {}
        self._closed: dict[ServiceKey, deque[tuple[int, bytes]]] = {}  # starts in order, and their slices
        self._latest = 0.0

    def record(self, outcome: Outcome, now: float) -> None:
        """Count a request in the slice in which it ended, or in the present one if that is closed already.

        A failed request counts in `requests` and `errors` only: its latency is not the model's.
        """
        self._latest = max(self._latest, now)
        start = _start(outcome.ended)
        if self._is_closed(start) or outcome.ended > self._latest:
            start = _start(self._latest)
        key = (outcome.namespace, outcome.service)
        slice_ = self._open_slice(key, start, outcome.revision, outcome.stratum)
        slice_.requests += 1
        if outcome.tokens is not None:
            slice_.tokens += outcome.tokens
            slice_.with_tokens += 1
        if outcome.failed:
            slice_.errors += 1
            return
        slice_.e2e[bucket_of(max(outcome.e2e, 0.0))] += 1
        if outcome.ttft is not None:
            slice_.ttft[bucket_of(max(outcome.ttft, 0.0))] += 1
        if outcome.tpot is not None:
            slice_.tpot[bucket_of(outcome.tpot)] += 1

    def record_arrival(self, key: ServiceKey, now: float) -> None:
        """Count a request for the service that came in within its limits, whatever its end."""
        self._latest = max(self._latest, now)
        self._open_slice(key, _start(self._latest), "", "").arrivals += 1

    def _open_slice(self, key: ServiceKey, start: int, revision: str, stratum: str) -> _Slice:
        slices = self._open.setdefault(key, {}).setdefault(start, {})
        slice_ = slices.get((revision, stratum))
        if slice_ is None:
            slice_ = slices[revision, stratum] = _Slice()
        return slice_

    def document(self, namespace: str, service: str, since: float, now: float) -> dict[str, object]:
        """Return the document of `/windows`, for msgspec: a service's closed slices with `start >= since`, oldest first."""
        self._latest = max(self._latest, now)
        key = (namespace, service)
        self._close(key)
        newest = takewhile(lambda closed: closed[0] >= since, reversed(self._closed.get(key, ())))
        slices = msgspec.Raw(b"[" + b",".join([encoded for _, encoded in newest][::-1]) + b"]")
        return {"instance": self.instance, "now": now, "sliceSeconds": SLICE_SECONDS, "slices": slices}

    def sweep(self, now: float) -> None:
        """Drop slices older than an hour, and services without any."""
        self._latest = max(self._latest, now)
        for key in list(self._open):
            self._close(key)
        oldest = self._latest - RETENTION_SECONDS
        for key, closed in list(self._closed.items()):
            while closed and closed[0][0] < oldest:
                closed.popleft()
            if not closed:
                del self._closed[key]

    def _close(self, key: ServiceKey) -> None:
        slices = self._open.get(key, {})
        for start in sorted(start for start in slices if self._is_closed(start)):
            ending = sorted(slices.pop(start).items())
            encoded = (
                msgspec.json.encode(slice_.document(start, revision, stratum)) for (revision, stratum), slice_ in ending
            )
            self._closed.setdefault(key, deque()).append((start, b",".join(encoded)))
        if not slices:
            self._open.pop(key, None)

    def _is_closed(self, start: int) -> bool:
        return start + SLICE_SECONDS + CLOSE_SECONDS <= self._latest


def _start(time: float) -> int:
    return math.floor(time / SLICE_SECONDS) * SLICE_SECONDS


def _histogram(counts: Counter[int]) -> dict[str, int]:
    return {str(bucket): count for bucket, count in sorted(counts.items())}
