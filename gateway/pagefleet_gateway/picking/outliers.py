"""Ejection of pods that failed lately. Pure; times are seconds of any steady clock.

A pod that could not be reached, did not answer in time or answered 503 is ejected at once. A pod that answers with other
5xx is ejected after ERRORS_TO_EJECT in a row. Each ejection in a row lasts twice as long as the one before. Then the pod is
on trial: it gets one request at a time, until it answers one. Ejected pods still get requests when there is no other
(score.py ranks them last). Source: Envoy's outlier detection, with a trial as of circuit breakers (Nygard, "Release It!",
2007).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

FIRST_EJECTION_SECONDS, MAX_EJECTION_SECONDS = 5.0, 60.0
ERRORS_TO_EJECT = 5  # 5xx in a row


@dataclass
class _Record:
    errors: int = 0  # answers with 5xx since the last other answer
    ejections: int = 0  # in a row
    until: float = 0.0


class Outliers:
    """The failures of pods, by uid. A pod without a record is sound."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def record_failure(self, uid: str, now: float) -> None:
        """Count that the pod was not reached or did not answer. While it is ejected, this is the same failure."""
        record = self._records.setdefault(uid, _Record())
        if record.until <= now:
            record.until = now + min(FIRST_EJECTION_SECONDS * 2.0**record.ejections, MAX_EJECTION_SECONDS)
            record.ejections = min(record.ejections + 1, 8)
            record.errors = 0

    def record_error(self, uid: str, now: float) -> None:
        """Count that the pod answered with a 5xx."""
        record = self._records.setdefault(uid, _Record())
        record.errors += 1
        if record.errors >= ERRORS_TO_EJECT:
            self.record_failure(uid, now)

    def record_success(self, uid: str, now: float) -> None:
        """Count a good answer. One that began before the pod failed proves nothing and is ignored."""
        record = self._records.get(uid)
        if record is not None and record.until <= now:
            del self._records[uid]

    def ejected(self, uid: str, in_flight: int, now: float) -> bool:
        """Whether other pods go first: the pod is ejected, or on trial and busy with its one request."""
        record = self._records.get(uid)
        if record is None or not record.ejections:
            return False
        return record.until > now or in_flight > 0

    def count(self, now: float) -> int:
        """Return the number of pods that are ejected now."""
        return sum(record.until > now for record in self._records.values())

    def retain(self, uids: Collection[str]) -> None:
        """Forget pods that are not among `uids`."""
        self._records = {uid: record for uid, record in self._records.items() if uid in uids}
