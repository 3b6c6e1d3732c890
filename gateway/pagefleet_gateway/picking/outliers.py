"""Ejection of pods that failed lately. Pure; times are seconds of any steady clock.

A pod that could not be reached, did not answer in time or answered 503 is ejected at once. A pod that answers with other
5xx is ejected after ERRORS_TO_EJECT in a row. Each ejection in a row lasts twice as long as the one before. Then the pod is
on trial: it gets one request at a time, until it answers one. Ejected pods still get requests when there is no other
(score.py ranks them last). Source: Envoy's outlier detection, with a trial as of circuit breakers (Nygard, "Release It!",
2007).

Gateways tell each other what they see of pods, so that a pod which fails is ejected by all of them, a trial is one request of all of
them, and ERRORS_TO_EJECT counts the errors that all of them get.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from pagefleet_gateway.cluster.steps import Steps, forget

FIRST_EJECTION_SECONDS, MAX_EJECTION_SECONDS = 5.0, 60.0
ERRORS_TO_EJECT = 5  # 5xx in a row
MAX_EJECTIONS = 8  # that are counted; the time does not grow so long
MAX_RECORDS = 100_000  # of pods that another gateway may tell about


@dataclass
class _Record:
    errors: int = 0  # answers with 5xx since the last other answer
    ejections: int = 0  # in a row
    until: float = 0.0


class Outliers:
    """The failures of pods, by uid. A pod without a record is sound."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._seen: dict[
            str, int
        ] = {}  # new errors, by the pods of which this gateway saw something since `take_changed`

    def record_failure(self, uid: str, now: float) -> None:
        """Count that the pod was not reached or did not answer. While it is ejected, this is the same failure."""
        self._seen.setdefault(uid, 0)
        self._eject(uid, now)

    def _eject(self, uid: str, now: float) -> None:
        record = self._records.setdefault(uid, _Record())
        if record.until <= now:
            record.until = now + min(FIRST_EJECTION_SECONDS * 2.0**record.ejections, MAX_EJECTION_SECONDS)
            record.ejections = min(record.ejections + 1, MAX_EJECTIONS)
            record.errors = 0

    def record_error(self, uid: str, now: float) -> None:
        """Count that the pod answered with a 5xx."""
        self._seen[uid] = self._seen.get(uid, 0) + 1
        self._add_errors(uid, 1, now)

    def _add_errors(self, uid: str, errors: int, now: float) -> None:
        record = self._records.setdefault(uid, _Record())
        record.errors += errors
        if record.errors >= ERRORS_TO_EJECT:
            self._eject(uid, now)

    def record_success(self, uid: str, now: float) -> None:
        """Count a good answer. One that began before the pod failed proves nothing and is ignored."""
        if self._clear(uid, now):
            self._seen[uid] = 0

    def _clear(self, uid: str, now: float) -> bool:
        record = self._records.get(uid)
        if record is None or record.until > now:
            return False
        del self._records[uid]
        return True

    def rows(self, now: float) -> Mapping[str, list[int]]:
        """Return the rows of all pods that failed, for another gateway, by uid: ejections in a row, milliseconds that the last
        one still lasts, and new errors. All three are 0 for a pod that is sound again.
        """
        return {uid: self._row(uid, 0, now) for uid, record in self._records.items() if record.ejections}

    def take_changed(self, now: float) -> Mapping[str, list[int]]:
        """Return the rows of the pods of which this gateway has seen something since the last call."""
        seen, self._seen = self._seen, {}
        return {uid: self._row(uid, errors, now) for uid, errors in seen.items()}

    def _row(self, uid: str, errors: int, now: float) -> list[int]:
        record = self._records.get(uid, _Record())
        return [record.ejections, max(0, round((record.until - now) * 1000)), errors]

    def hear(self, rows: object, now: float) -> None:
        """Take over what another gateway has seen. A row that is malformed is left out."""
        for uid, row in rows.items() if isinstance(rows, Mapping) else ():
            read = _read(row)
            if (
                read is None
                or not isinstance(uid, str)
                or (uid not in self._records and len(self._records) >= MAX_RECORDS)
            ):
                continue
            ejections, milliseconds, errors = read
            if not ejections and not errors:
                self._clear(uid, now)
                continue
            record = self._records.setdefault(uid, _Record())
            if milliseconds:
                record.until, record.errors = max(record.until, now + milliseconds / 1000), 0
            record.ejections = max(record.ejections, ejections)
            if record.until <= now:
                self._add_errors(uid, errors, now)

    def has_failed(self, uid: str) -> bool:
        """Return whether the pod has failed since its last good answer."""
        return uid in self._records

    def ejected(self, uid: str, in_flight: int, now: float) -> bool:
        """Whether other pods go first: the pod is ejected, or on trial and busy with its one request."""
        record = self._records.get(uid)
        if record is None or not record.ejections:
            return False
        return record.until > now or in_flight > 0

    def count(self, now: float) -> int:
        """Return the number of pods that are ejected now."""
        return sum(record.until > now for record in self._records.values())

    def retain(self, uids: Container[str]) -> Steps:
        """Forget pods that are not among `uids`."""
        return forget(self._records, uids)


def merged(row: list[int] | None, newer: list[int]) -> list[int]:
    """Return what a gateway hears in place of two rows of one pod."""
    return newer if row is None or not any(newer) else [*newer[:2], row[2] + newer[2]]


def _read(row: object) -> tuple[int, int, int] | None:
    if not isinstance(row, list) or len(row) != 3 or not all(type(value) is int for value in row):
        return None
    ejections, milliseconds, errors = row
    if not (
        0 <= ejections <= MAX_EJECTIONS
        and 0 <= milliseconds <= MAX_EJECTION_SECONDS * 1000
        and 0 <= errors <= 1_000_000
    ):
        return None
    return ejections, milliseconds, errors
