"""Judges the stable revision by its predecessor's record at like load: whether its tail of slow first tokens is heavier.

A request is a hit when it is slower than its load's bound (`load_records`). While the revision is no worse than accepted, at
most 1 - quantile of the requests are hits, at any hour. `evidence` bets against that, minute by minute. The watch has no
end, and needs no slices older than LOOK_BACK_SECONDS: the evidence so far is in the status, unless it is so small that the
watch may as well begin again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis.adjusted import whole_answers
from pagefleet_operator.domain.analysis.watching import evidence, load_records
from pagefleet_operator.domain.analysis.watching.evidence import Bet
from pagefleet_operator.domain.analysis.watching.load_records import Bounds
from pagefleet_operator.domain.analysis.watching.minutes import MINUTE, Minute, complete, newest_complete
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.base.logarithms import value_of
from pagefleet_operator.domain.spec.rollout import LatencyGuard
from pagefleet_operator.domain.status.observation import RevisionReading, Slice
from pagefleet_operator.domain.status.status import BaselineRecord, WatchRecord

LOOK_BACK_SECONDS = 420.0
MIN_MINUTES = 4  # in which the evidence of a conviction must lie
STAYS = math.log(10.0)  # how far evidence may grow beyond a conviction, so that it is gone soon after its cause
STRATUM_WIDTH = 2.0**1.5  # the ratio of a stratum's ends: how much slower a queue may be within it
MIN_OWN = 1000  # requests from which a revision is compared with its own record
MIN_SHOWN = 20  # requests from which a quantile is stated


@dataclass(frozen=True)
class Question:
    """The comparison: the signal's limits, the predecessor's record, and the time from which the revision is judged.

    At loads that the predecessor never had, the revision is compared with its `own` record. The signal is that of `whole_answers`
    where those are judged.
    """

    entry: LatencyGuard
    records: tuple[BaselineRecord, ...]
    since: float
    now: float
    own: tuple[BaselineRecord, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether whole answers are judged in the place of first tokens."""
        return self.entry.signal == whole_answers.SIGNAL

    @property
    def level(self) -> float:
        return 1 - self.entry.confidence


@dataclass(frozen=True)
class Answer:
    """What is stored for the next decision (None: nothing), and the numbers of the minutes that were looked at.

    `ratio` is the revision's quantile divided by its predecessor's at the same load, None when too few requests tell.
    """

    record: WatchRecord | None
    convicted: bool = False
    hits: int = 0
    trials: int = 0
    log: float = evidence.FLOOR
    ratio: float | None = None


def judge(question: Question, slices: Sequence[Slice], reading: RevisionReading, before: WatchRecord | None) -> Answer:
    """Count the minutes that have become complete since `before`, and decide."""
    if before is not None and (before.revision != reading.hash or signal_of(before) != question.entry.signal):
        before = None
    if before is not None and before.until > question.now:  # the clock was set back: the minutes that come count
        before = replace(before, until=newest_complete(question.now))
    entry = question.entry
    half = question.level / 2
    bounds = [
        load_records.bounds_of(records, entry.quantile, entry.max_increase)
        for records in (question.records, [one for one in question.own if _is_usable(one)])
    ]
    since = max(question.since, question.now - LOOK_BACK_SECONDS)
    needed = math.log(1 / half)
    start = needed - evidence.BEGINNING  # what a conviction takes from a first minute on
    dispersion = load_records.dispersion_of((*question.records, *question.own))
    bet = Bet(1 - entry.quantile, dispersion, start / MIN_MINUTES, needed + STAYS)
    recent = complete(slices, reading, since, question.now, whole=question.whole)
    minutes = [minute for minute in recent if before is None or minute.start >= before.until]
    logs = before.logs if before else ()
    hits, trials = (before.hits, before.trials) if before else (0, 0)
    # Of minutes that count already, too: a revision that hangs has no others.
    shifts = {name: one.shift for minute in recent for name, one in minute.strata.items() if one.shift is not None}
    for minute in minutes:
        slow, decided = _count(minute, bounds, shifts, 1 - entry.quantile)
        if decided:
            logs, hits, trials = evidence.after(logs, slow, decided, bet), hits + slow, trials + decided
    log, regressed = evidence.total(logs), before is not None and before.regressed
    convicted = log >= needed or (regressed and log >= 0)
    answer = Answer(None, convicted, hits, trials, log, _ratio(recent, question, entry.quantile))
    if evidence.quiet(logs):  # which is far below a conviction
        return answer
    began = before.since if before else minutes[0].start
    until = minutes[-1].start + MINUTE if minutes else before.until if before else 0.0
    message = before.message if regressed and before else _sentence(question, answer, reading.hash)
    record = WatchRecord(reading.hash, entry.title, began, until, logs, hits, trials, convicted)
    return replace(answer, record=replace(record, message=message if convicted else ""))


def _count(minute: Minute, bounds: Sequence[Bounds], shifts: Mapping[str, float], share: float) -> tuple[int, int]:
    """The requests of a minute that were slower than their load's bound, and all that are decided about.

    `share` of them may be slower.
    """
    hits = trials = 0
    for name, stratum in minute.strata.items():
        bound = _first(bounds, name, minute.running)
        if bound is not None:
            queue = minute.is_queue(name)
            slow, decided = stratum.decided(STRATUM_WIDTH * bound if queue else bound, shifts.get(name))
            if queue and slow <= share * decided:
                continue  # the bound is too high to show that the revision is as quick as its predecessor
            hits, trials = hits + slow, trials + decided
    return hits, trials


def signal_of(record: WatchRecord) -> str:
    """The signal whose title a record has."""
    return record.signal.split(" ")[0]


def _is_usable(record: BaselineRecord) -> bool:
    return sum(record.histogram.values()) >= MIN_OWN


def _ratio(minutes: Sequence[Minute], question: Question, quantile: float) -> float | None:
    """The weighted geometric mean of the ratios of the present quantile to the recorded one, load by load."""
    recorded = [load_records.quantiles_of(records, quantile) for records in (question.records, question.own)]
    cells: dict[tuple[str, int], dict[int, int]] = {}
    for minute in minutes:
        for name, stratum in minute.strata.items():
            cell = name, minute.running
            cells[cell] = sketch.merged([cells.get(cell, {}), stratum.measured])
    log = weight = 0.0
    for (name, running), histogram in cells.items():
        before, present = _first(recorded, name, running), sketch.quantile(histogram, quantile)
        count = sketch.total(histogram)
        if before and present and count >= MIN_SHOWN:
            log, weight = log + count * math.log(present / before), weight + count
    return math.exp(log / weight) if weight else None


def _first(tables: Sequence[Bounds], name: str, running: int) -> float | None:
    """The predecessor's value for a load, or else the revision's own."""
    return next((value for table in tables if (value := load_records.at(table, name, running)) is not None), None)


def _sentence(question: Question, answer: Answer, revision: str) -> str:
    """The numbers for people."""
    entry = question.entry
    share = answer.hits / answer.trials if answer.trials else 0.0
    ratio = f" is {answer.ratio:.2f} times that recorded at the same load" if answer.ratio else ""
    return (
        f"{entry.title} of revision {revision}{ratio}; {share:.1%} of its {answer.trials} requests are slower than the "
        f"{entry.quantile_name} recorded at their load by more than {entry.max_increase:.0%}, "
        f"accepted {1 - entry.quantile:.1%} (evidence {value_of(answer.log):.3g})"
    )
