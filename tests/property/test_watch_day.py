"""Protects the watch through daily peaks: a good revision is never held for worse because the service is busy, and a worse one is
found at any hour, however late it became worse, also when its requests hang. PAGEFLEET_SEEDS says how many services
(8 in the night)."""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass

import pytest
from support.virtual.day import DAY, Days, slices

from pagefleet_operator.domain.analysis.watching import like_load, load_records, minutes
from pagefleet_operator.domain.spec.rollout import DEFAULT_WATCH
from pagefleet_operator.domain.status.observation import PodReading, RevisionReading, Slice
from pagefleet_operator.domain.status.status import BaselineRecord, WatchRecord

INTERVAL = 300.0
SEEDS = range(int(os.environ.get("PAGEFLEET_SEEDS", "1")))


@dataclass
class Watched:
    """The watch of one service, as the operator keeps it: a decision a minute."""

    days: Days
    highest: float = -1e9
    judged: int = 0

    def __post_init__(self) -> None:
        self._slices = slices(self.days)
        self._starts = [piece.start for piece in self._slices]

    def convicted_after(self) -> float | None:
        """Seconds from the onset to the conviction; None without one."""
        before: tuple[BaselineRecord, ...] = ()
        own: tuple[BaselineRecord, ...] = ()
        record: WatchRecord | None = None
        for number in range(1, round(self.days.seconds / 60)):
            now = 60.0 * number
            recent = self._recent(now)
            if now <= self.days.promoted:
                before = self._grown(before, recent, "old", now) if now % INTERVAL == 0 else before
                continue
            question = like_load.Question(DEFAULT_WATCH, before, self.days.promoted, now, own)
            answer = like_load.judge(question, recent, self._reading("new"), record)
            self.highest, self.judged = max(self.highest, answer.log), max(self.judged, answer.trials)
            if answer.convicted:
                return now - max(self.days.promoted, self.days.onset)
            if (record := answer.record) is None and now % INTERVAL == 0:
                own = self._grown(own, recent, "new", now)
        return None

    def _recent(self, now: float) -> list[Slice]:
        return self._slices[bisect_left(self._starts, now - 480) : bisect_left(self._starts, now - 4)]

    def _grown(
        self, records: tuple[BaselineRecord, ...], recent: list[Slice], revision: str, now: float
    ) -> tuple[BaselineRecord, ...]:
        until = max((one.until for one in records), default=now - INTERVAL)
        new = minutes.complete(recent, self._reading(revision), until, now)
        return load_records.grown(records, new, revision, DEFAULT_WATCH.quantile) if new else records

    def _reading(self, revision: str) -> RevisionReading:
        pods = tuple(PodReading(f"p{n}", True, False, 0.0, 0.0) for n in range(self.days.replicas))
        return RevisionReading(revision, len(pods), pods)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("longer", [1.0, 1.2])
def test_a_good_revision_passes_its_daily_peaks(longer: float, seed: int) -> None:
    """The old revision is promoted in the middle of the second day, and the new one sees two more peaks."""
    watched = Watched(Days(seed, seconds=3 * DAY, promoted=1.25 * DAY, longer=longer))
    assert watched.convicted_after() is None, f"evidence e^{watched.highest:.1f}"
    assert watched.judged > 200, "it was compared"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("onset", [0.0, 0.3, 1.0], ids=["at the promotion", "at the next peak", "a day later"])
def test_a_revision_twice_as_slow_is_found_at_any_hour(onset: float, seed: int) -> None:
    began = 1.25 * DAY + onset * DAY
    after = Watched(Days(seed, began + 2400, 1.25 * DAY, peak=0.4, worse=2.0, onset=began)).convicted_after()
    assert after is not None and after <= 900


def test_a_revision_that_hangs_is_found_by_its_waiting_requests() -> None:
    began = 1.4 * DAY
    watched = Watched(Days(1, began + 600, 1.25 * DAY, rate=3.0, peak=0.4, onset=began, hang=True))
    after = watched.convicted_after()
    assert after is not None and after <= 480, (after, watched.highest)
