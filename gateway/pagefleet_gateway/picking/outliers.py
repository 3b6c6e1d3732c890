"""Pods that failed lately, and for how long each is left alone. Pure; times are seconds of any steady clock.

A pod that could not be reached, did not answer in time or answered 503 is ejected at once; one that answers with other
5xx is after ERRORS in a row. Each time in a row it stays out twice as long; then it is on trial: one request at a time,
until one is answered. Ejected pods are still met when no other is there (score.py puts them last). Source: Envoy's
outlier detection, with a trial as of circuit breakers (Nygard, "Release It!", 2007).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

FIRST_SECONDS, LONGEST_SECONDS = 5.0, 60.0
ERRORS = 5  # 5xx in a row


@dataclass
class _Record:
    errors: int = 0  # answers with 5xx since the last other answer
    times: int = 0  # ejections in a row
    until: float = 0.0


class Outliers:
    """What is known of pods by uid. A pod without a record is sound."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def failed(self, uid: str, now: float) -> None:
        """The pod was not reached or did not answer. What fails while it is out belongs to the same failure."""
        record = self._records.setdefault(uid, _Record())
        if record.until <= now:
            record.until = now + min(FIRST_SECONDS * 2.0**record.times, LONGEST_SECONDS)
            record.times = min(record.times + 1, 8)
            record.errors = 0

    def errored(self, uid: str, now: float) -> None:
        """The pod answered with a 5xx."""
        record = self._records.setdefault(uid, _Record())
        record.errors += 1
        if record.errors >= ERRORS:
            self.failed(uid, now)

    def answered(self, uid: str, now: float) -> None:
        """The pod answered well. What it began to answer before it failed says nothing of it now."""
        record = self._records.get(uid)
        if record is not None and record.until <= now:
            del self._records[uid]

    def ejected(self, uid: str, in_flight: int, now: float) -> bool:
        """Whether others go first: it is out, or on trial and busy with that."""
        record = self._records.get(uid)
        if record is None or not record.times:
            return False
        return record.until > now or in_flight > 0

    def count(self, now: float) -> int:
        """Pods that are out now."""
        return sum(record.until > now for record in self._records.values())

    def keep(self, uids: Collection[str]) -> None:
        """Forget pods that are gone."""
        self._records = {uid: record for uid, record in self._records.items() if uid in uids}
