"""The judgement: ours beside the others at equal attainment, case by case, and what the figures promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from scalerbench.frontier import Point, at, front
from scalerbench.running import HEADROOMS, OURS, Job, Result

MOST, MEDIAN = 1.02, 0.85  # of the others' accelerator-hours: on any case, and on the median of the cases
HIGH, GOAL = 0.99, 0.95
TOLD = (
    "wva-queueing",
    "dynamo-sla",
    "tokenscale",
)  # get from the profile what a replica carries; the rest learn it or need it not
BUILT_IN = ("steady", "step", "burst", "diurnal", "heavy")


@dataclass(frozen=True)
class Row:
    """Medians over the seeds of one setting on one case; `least` is the lowest attainment of a seed."""

    family: str
    index: int
    attainment: float
    hours: float
    events: float
    flaps: float
    dropped: float
    least: float
    most_flaps: int
    seeds: int


@dataclass(frozen=True)
class Verdict:
    """One case. `mine` has the default setting. `peer` is the others' cheapest way to what it attains, or, where `equal` is false, what
    attains most of them; `untold` is that of the others without TOLD. `high` is the cheapest setting of ours that attains HIGH, where any
    does, and `high_peer` the others' cheapest way to what that one attains."""

    case: str
    mine: Row
    peer: Point
    equal: bool
    highest: float  # attainment of any other
    untold: Point | None
    high: Row | None
    high_peer: Point | None

    @property
    def ratio(self) -> float:
        return self.mine.hours / self.peer.hours


def rows(results: Mapping[Job, Result]) -> dict[tuple[str, int], Row]:
    """Rows by family and index; the jobs are of one case."""
    found: dict[tuple[str, int], list[Result]] = {}
    for job, result in results.items():
        found.setdefault((job.family, job.index), []).append(result)
    return {key: _row(*key, listed) for key, listed in found.items()}


def _row(family: str, index: int, listed: Sequence[Result]) -> Row:
    keys = ("attainment", "hours", "events", "flaps", "dropped")
    medians = {key: float(median(getattr(one, key) for one in listed)) for key in keys}
    least, most = min(one.attainment for one in listed), max(one.flaps for one in listed)
    return Row(family, index, **medians, least=least, most_flaps=most, seeds=len(listed))


def point(row: Row) -> Point:
    return Point(row.attainment, row.hours, f"{row.family} {row.index}")


def verdict(case: str, measured: Mapping[tuple[str, int], Row]) -> Verdict:
    """Only settings with as many seeds as ours count."""
    mine = measured[OURS, 0]
    listed = [row for row in measured.values() if row.family != OURS and row.seeds == mine.seeds]
    others = front(map(point, listed))
    untold = front(point(row) for row in listed if row.family not in TOLD)
    equal = at(others, mine.attainment)
    reaching = [row for row in measured.values() if row.family == OURS and row.attainment >= HIGH]
    high = min(reaching, key=lambda row: row.hours, default=None)
    return Verdict(
        case,
        mine,
        equal or others[-1],
        equal is not None,
        others[-1].attainment,
        at(untold, mine.attainment),
        high,
        None if high is None else at(others, min(high.attainment, others[-1].attainment)),
    )


def judge(verdicts: Sequence[Verdict]) -> list[tuple[str, bool]]:
    """Each claim with whether it holds."""
    claims = [
        (
            f"{one.case}: {one.ratio:.2f} x the accelerator-hours (<= {MOST}) of {one.peer.label}"
            + ("" if one.equal else f", which attains most of the others, {one.highest:.2%}, less than ours"),
            one.ratio <= MOST,
        )
        for one in verdicts
    ]
    middle = median(one.ratio for one in verdicts)
    claims.append((f"median of {len(verdicts)} cases: {middle:.2f} x (<= {MEDIAN})", middle <= MEDIAN))
    for one in verdicts:
        if one.highest >= HIGH:
            text = f"{one.case}: attains {one.mine.attainment:.2%} (>= {HIGH:.0%}, as others reach {one.highest:.2%}; lowest seed {one.mine.least:.2%})"
            claims.append((text, one.mine.attainment >= HIGH))
            if one.mine.attainment < HIGH:
                claims.append(_with_headroom(one))
        elif one.case in BUILT_IN:
            text = f"{one.case}: attains {one.mine.attainment:.2%} (>= {GOAL:.0%}; lowest seed {one.mine.least:.2%})"
            claims.append((text, one.mine.attainment >= GOAL))
    return claims


def _with_headroom(one: Verdict) -> tuple[str, bool]:
    """Whether ours attains HIGH with headroom, for no more than the others take."""
    if one.high is None or one.high_peer is None:
        return f"{one.case}: no headroom up to {HEADROOMS[-1]:.0%} attains {HIGH:.0%}", False
    ratio = one.high.hours / one.high_peer.hours
    text = (
        f"{one.case}: with headroom of {HEADROOMS[one.high.index]:.0%} {one.high.attainment:.2%} for {one.high.hours:.1f} hours,"
        f" {ratio:.2f} x (<= {MOST}) of {one.high_peer.label}"
    )
    return text, ratio <= MOST
