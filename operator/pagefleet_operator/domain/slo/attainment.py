"""Adds up the requests that kept or missed a service's objectives, by day and over the last hour, from the gateways' slices.

Each slice is added once. A restarted operator continues from the status: it adds only slices that are newer than the record.
A time that lies in the future (the clock was set back) becomes the present.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from pagefleet_operator.domain.slo.days import DAY_SECONDS, day_number
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.records.slo import SLORecord
from pagefleet_operator.domain.status.sample import NOTHING, Counts, ObjectiveCounts, SLOReading

MAX_DAYS = 91  # of the longest window, and of the day on which it begins
RECENT_SECONDS, MINUTE = 3600.0, 60.0
MAX_KEYS = 64  # objectives of a service, those of its former specs included


class Attainment:
    """The counts of one service, which continue those that were recorded. Times are UNIX seconds by the operator's clock."""

    def __init__(self, recorded: SLORecord | None = None, now: float = math.inf) -> None:
        self._recorded = recorded.until if recorded is not None else -math.inf
        self._floor = _passed(self._recorded, now)
        self.newest = self._floor
        self._days: dict[str, dict[int, Counts]] = {}
        self._minutes: dict[str, dict[int, Counts]] = {}
        for objective in recorded.objectives if recorded is not None else ():
            for entry in objective.days:
                number = day_number(entry.day)
                if number is not None and 0 <= entry.missed <= entry.requests:
                    _add(self._days, objective.key, number, (entry.requests, entry.missed))

    def lacks(self, recorded: SLORecord) -> bool:
        """Whether the record counts more, because another operator has led."""
        return recorded.until > max(self.newest, self._recorded)

    def add(self, slices: Iterable[Slice]) -> None:
        """Add slices that were not added before, in any order."""
        for piece in slices:
            for key, counts in piece.slo.items():
                if key in self._minutes or len(self._minutes) < MAX_KEYS:
                    _add(self._minutes, key, math.floor(piece.start / MINUTE), counts)
                    if piece.start > self._floor:
                        _add(self._days, key, math.floor(piece.start / DAY_SECONDS), counts)
            if piece.slo:
                self.newest = max(self.newest, piece.start)

    def reading(self, now: float) -> SLOReading | None:
        """The counts at `now`; None before the first slice."""
        if self.newest == -math.inf:
            return None
        self._forget(now)
        counts = {
            key: ObjectiveCounts(dict(self._days.get(key, {})), _total(self._minutes.get(key, {}).values()))
            for key in {**self._days, **self._minutes}
        }
        first = min((minute for minutes in self._minutes.values() for minute in minutes), default=now / MINUTE)
        return SLOReading(_passed(self.newest, now), min(RECENT_SECONDS, max(MINUTE, now - first * MINUTE)), counts)

    def _forget(self, now: float) -> None:
        for table, oldest, latest in (
            (self._days, math.floor(now / DAY_SECONDS) - MAX_DAYS + 1, math.floor(now / DAY_SECONDS)),
            (self._minutes, math.floor((now - RECENT_SECONDS) / MINUTE), math.floor(now / MINUTE)),
        ):
            for key in list(table):
                for late in [time for time in table[key] if time > latest]:
                    _add(table, key, latest, table[key].pop(late))
                table[key] = {time: counts for time, counts in table[key].items() if time >= oldest}
                if not table[key]:
                    del table[key]
        idle = [key for key in self._days if key not in self._minutes]  # the longest known first
        for key in idle[: max(0, len(self._days) - MAX_KEYS)]:
            del self._days[key]


def _passed(time: float, now: float) -> float:
    """The time, or `now` where it lies further ahead than clocks differ."""
    return time if time <= now + MINUTE else now


def _add(table: dict[str, dict[int, Counts]], key: str, time: int, counts: Counts) -> None:
    entries = table.setdefault(key, {})
    entries[time] = _total((entries.get(time, NOTHING), counts))


def _total(counts: Iterable[Counts]) -> Counts:
    requests = missed = 0
    for more, misses in counts:
        requests, missed = requests + more, missed + misses
    return requests, missed
