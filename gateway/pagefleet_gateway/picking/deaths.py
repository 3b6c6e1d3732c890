"""Requests that engines may have ended of: they were in flight when the engine ended. Pure.

A request is known by its service and its body. Envoy retries by itself, so when a body comes for the first time, a
connection that is cut hands it on as often as `traffic.retries` says. Our engine's API outlives its engine process and
answers with a 503, which is retried, and on a retry with a 500, which is not: such a request meets two engines. From the
first end on the body is sent to one pod, without a retry and without a copy. After the second end it is refused: for a
minute, then one try, and after each further end for twice as long. A whole answer clears it: the engines ended for another
reason.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from pagefleet_gateway.cluster.state import ServiceKey

ENDS = 2  # of engines, after which a request is refused
FIRST_SECONDS, MAX_SECONDS = 60.0, 3600.0  # how long it is refused
SAME_SECONDS = 5.0  # within which all that a pod cuts was cut by one end
MAX_RECORDS = 10_000

Content = tuple[ServiceKey, bytes]


def content(service: ServiceKey, body: bytes) -> Content | None:
    """What a request is known by; None for one without a body, which no engine computes."""
    return (service, hashlib.blake2b(body, digest_size=16).digest()) if body else None


@dataclass
class _Record:
    ends: int = 0
    pods: dict[str, float] = field(default_factory=dict)  # uid: when its engine ended last
    last: float = 0.0  # end
    until: float = 0.0  # refused


class Deaths:
    """Times are seconds of any steady clock."""

    def __init__(self) -> None:
        self._records: OrderedDict[Content, _Record] = OrderedDict()

    def died(self, request: Content | None, uid: str, now: float) -> None:
        """The pod's engine ended while it had the request."""
        if request is None:
            return
        record = self._records.setdefault(request, _Record())
        if uid in record.pods and now < record.pods[uid] + SAME_SECONDS:
            return
        record.pods[uid] = record.last = now
        record.ends += 1
        if record.ends >= ENDS:
            record.until = now + min(FIRST_SECONDS * 2.0 ** min(record.ends - ENDS, 8), MAX_SECONDS)
        if len(self._records) > MAX_RECORDS:
            self._records.popitem(last=False)

    def answered(self, request: Content | None) -> None:
        """The request had a whole answer."""
        if request is not None and self._records:
            self._records.pop(request, None)

    def ends(self, request: Content | None) -> int:
        """Engines that ended while they had the request, since it was answered last."""
        record = self._records.get(request) if request is not None and self._records else None
        return 0 if record is None else record.ends

    def wait(self, request: Content | None, now: float) -> float:
        """Seconds for which the request is refused. 0 lets it pass; after two ends this one alone for a minute."""
        record = self._records.get(request) if request is not None and self._records else None
        if record is None or record.ends < ENDS:
            return 0.0
        if record.until > now:
            return record.until - now
        record.until = now + FIRST_SECONDS
        return 0.0

    def sweep(self, now: float) -> None:
        """Forget what was long ago."""
        for request in [one for one, record in self._records.items() if record.last + 2 * MAX_SECONDS < now]:
            del self._records[request]
