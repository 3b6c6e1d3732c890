"""The evidence that more of the canary's requests fail than the spec accepts, and more than the stable's at the same time.

The failures are those of the error signal, or the requests that are slower than an absolute bound.

Time is cut into periods. Each adds to two sums over onsets (`onsets`), and both must convict:

- *absolute*: the canary fails more often than p0, the accepted share, or the stable's share of the last half minute where
  that is larger. An alternative is m * p0; the likelihood ratio of k failures of n requests is m^k * exp(-n * p0 * (m - 1)). It
  is Poisson's, which is below the binomial one, and holds also while slow requests end later than they came.
- *relative*: given the failures of both revisions in the period, those of the canary are no more than its share of the
  requests says. This is exact whatever happens to both at once (Lindon & Malek, "Anytime-valid inference for multinomial
  count data", NeurIPS 2022). A period without failures says nothing, and costs nothing. While the stable has less than a third
  of the canary's requests it cannot show much; then p0 is also at least the upper bound of the stable's own share as it was
  known before, and the absolute ratio counts here too. Once the stable has no requests at all, p0 is at least its likely share. So
  it is after a promotion, by what is known of the stable before (`handed_over`).

The relative sum keeps the error level of the guard for any length of rollout, so a canary that is no worse than the stable is
safe. The absolute one has steady onset weights: it bounds how often a canary that is worse than the stable, and fails exactly
at the limit, is convicted within a time (ABSOLUTE_LEVEL * (1/2 + periods * ONSET)), and is in return as fast after days as in the
first minutes. tests/property/test_guard_errors.py has the figures.

Failures come in bursts: a crashed engine drops all its requests in flight. So a slice (two seconds) adds no more than
MAX_SLICE_LOG, which is less than a third of what the earliest conviction takes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Histogram
from pagefleet_operator.domain.analysis.adjusted.onsets import OnsetMixture, OnsetPrior
from pagefleet_operator.domain.analysis.waits import InFlight, Waits, decided
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.status.failure_record import FailureRecord, FailureTotals
from pagefleet_operator.domain.status.observation import Slice

PERIOD_SECONDS = 10.0  # the stable's failures excuse the canary's within such a period
ABSOLUTE_LEVEL, ONSET = 0.05, 1 / 40
ABSOLUTE_ODDS, ABSOLUTE_SHARES, ABSOLUTE_PRIOR = (4.0, 12.0, 40.0), (0.6, 0.25, 0.15), OnsetPrior(0.0, ONSET)
RELATIVE_ODDS, RELATIVE_SHARES, RELATIVE_PRIOR = (3.0, 10.0, 50.0), (0.2, 0.3, 0.5), OnsetPrior(300.0)
MAX_SLICE_LOG = 2.2
SETTLED_PERIODS = 2  # slices of a gateway that answers late still come into so many periods before the newest
NEAR_PERIODS = 3.0  # the stable's failures excuse the canary's for about so long
MIN_NEAR = 1.0  # requests of that time, so that it ends where the stable has no more of them
GONE = 1e-4  # a stable that has so few of that time has had no request for about five minutes
FAR_PERIODS, FAR_REQUESTS = 30.0, 500.0  # the stable's share is known from so much, whichever is longer
CONCURRENT = 1 / 3  # of the canary's requests: with fewer, the stable's cannot be compared period by period
UPPER_DEVIATIONS = 1.65  # of the upper bound of the stable's share
MIN_SHARE, MAX_SHARE = 1e-4, 0.95


@dataclass
class FailureCounts:
    """Requests and failures of both revisions in one period, and the starts of the slices with failures of the canary."""

    stable: int = 0
    stable_failed: int = 0
    canary: int = 0
    canary_failed: int = 0
    starts: tuple[float, ...] = ()
    canary_retried: int = 0  # of the failures: attempts whose request was tried again
    stable_client_errors: int = 0  # 4xx, which are in none of the other counts
    canary_client_errors: int = 0
    stable_arrived: int = 0  # requests that came: a failure often ends sooner than an answer
    canary_arrived: int = 0
    stable_timeouts: int = 0
    canary_timeouts: int = 0
    stable_fell_back: int = 0  # requests that another service answered, which are in none of the other counts
    canary_fell_back: int = 0

    def add(self, requests: int, failed: int, start: float, of_canary: bool) -> None:
        """Count requests and failures of the slice that began at `start`."""
        if not of_canary:
            self.stable += requests
            self.stable_failed += failed
            return
        self.canary += requests
        self.canary_failed += failed
        if failed:
            self.starts = (*self.starts, start)


@dataclass(frozen=True)
class Bound:
    """An absolute bound of a latency signal."""

    signal: str
    seconds: float


class SlowCounts:
    """The requests of one bound, in `periods` by number: a request that is slower is a failure.

    A request in flight is slow when its age passes the bound. `blind`: the bound lies above a histogram's last edge.
    """

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self.periods: dict[int, FailureCounts] = {}
        self.blind = False
        self._in_flight: dict[tuple[str, bool], InFlight] = {}  # by stratum and revision

    def add(self, piece: Slice, of_canary: bool) -> None:
        """Count a slice."""
        signal, seconds = self._bound.signal, self._bound.seconds
        measured, edged = piece.latency.get(signal, {}), piece.edged.get(signal)
        if edged is not None:
            self.blind |= edged.ends_below(seconds)
            count, slow = sketch.total(measured), edged.above(seconds)
        else:
            begin, end = self.skip(piece, of_canary)
            counted = decided(measured, Waits(begin, end, piece.unmeasured.get(signal, {})), seconds)
            count, slow = round(counted[0]), round(counted[1])
        period_of(self.periods, piece).add(count, slow, piece.start, of_canary)

    def skip(self, piece: Slice, of_canary: bool) -> tuple[Histogram, Histogram]:
        """Note the requests in flight at the end of a slice. Return those before and after it."""
        in_flight = self._in_flight.setdefault((piece.stratum, of_canary), InFlight())
        begin = in_flight.total()
        in_flight.update(piece, self._bound.signal)
        return begin, in_flight.total()

    def copied(self) -> SlowCounts:
        result = copy.copy(self)
        result.periods = {number: copy.copy(period) for number, period in self.periods.items()}
        result._in_flight = {key: one.copied() for key, one in self._in_flight.items()}
        return result


def period_of(periods: dict[int, FailureCounts], piece: Slice) -> FailureCounts:
    """The period that a slice lies in: of a longer slice the last one.

    An engine's slice begins where a request ended before, perhaps minutes ago. Periods of that time are settled.
    """
    number = math.floor((piece.start + max(0.0, piece.seconds - PERIOD_SECONDS)) / PERIOD_SECONDS)
    if number not in periods:
        periods[number] = FailureCounts()
    return periods[number]


def not_ahead(stored: Iterable[FailureRecord], now: float) -> tuple[FailureRecord, ...]:
    """What is stored, also after the clock was set back: then the periods that begin from `now` on count."""
    present = math.floor(now / PERIOD_SECONDS) + 1
    return tuple(
        replace(one, until=present, recent_from=min(one.recent_from, present)) if one.until > present else one
        for one in stored
    )


def until_now(periods: Mapping[int, FailureCounts], now: float) -> Mapping[int, FailureCounts]:
    """The periods that have begun. After the clock was set back, those of a time that is still to come would count again and again."""
    present = math.floor(now / PERIOD_SECONDS)
    ahead = max(periods, default=present) > present
    return {number: one for number, one in periods.items() if number <= present} if ahead else periods


@dataclass(frozen=True)
class Subject:
    """The requests that the evidence is about: as in `FailureRecord`. `odds` are the alternatives of the absolute part.

    With a `ratio`, the canary may fail so many times as often as the stable. Then a stable without requests leaves nothing to
    say. `ceiling` bounds what a period adds; None: MAX_SLICE_LOG for each of its slices with failures.
    """

    signal: str
    source: str
    against: str
    since: float
    limit: float
    odds: tuple[float, ...] = ABSOLUTE_ODDS
    ratio: float = 1.0
    ceiling: float | None = None

    def is_of(self, record: FailureRecord) -> bool:
        stored = record.signal, record.source, record.against, record.since, record.limit
        return stored == (self.signal, self.source, self.against, self.since, self.limit)


@dataclass(frozen=True)
class FailureEvidence:
    """The evidence with the newest periods, and the part of it that no later slice can change: to be stored."""

    now: FailureRecord
    settled: FailureRecord

    def log(self, level: float) -> float:
        """The logarithm of the evidence; from log(1 / level) on the canary is convicted."""
        absolute = OnsetMixture(self.now.absolute).log + math.log(ABSOLUTE_LEVEL)
        return min(absolute - math.log(level), OnsetMixture(self.now.relative).log)

    @property
    def seconds(self) -> float:
        """The time since failures have been too many, 0 while they are not."""
        recent = self.now.recent
        return (self.now.until - self.now.recent_from) * PERIOD_SECONDS if recent.canary_failed else 0.0


def gather(
    stored: Iterable[FailureRecord],
    subject: Subject,
    periods: Mapping[int, FailureCounts],
    counts: Callable[[FailureCounts], FailureCounts] = lambda period: period,
) -> FailureEvidence:
    """Add the new periods to what is stored of the subject; a record that cannot be read counts as none.

    `counts` takes the subject's requests and failures out of a period's.
    """
    record = _usable(stored, subject)
    settled, newest = record, max(periods, default=0)
    for number in sorted(number for number in periods if number >= record.until):
        record = _add(record, number, counts(periods[number]), subject)
        if number < newest - SETTLED_PERIODS:
            settled = record
    return FailureEvidence(record, settled)


def handed_over(stored: Iterable[FailureRecord], against: str, since: float) -> tuple[FailureRecord, ...]:
    """What is known, when a canary is promoted at `since`, of the share of failures that the stable before it (`against`) had."""
    known = [one for one in stored if one.against == against and len(one.far) == 2]
    fresh = (_fresh(Subject(one.signal, one.source, "", since, one.limit), len(one.absolute)) for one in known)
    return tuple(replace(record, far=one.far) for record, one in zip(fresh, known, strict=True))


def _usable(stored: Iterable[FailureRecord], subject: Subject) -> FailureRecord:
    record = next((record for record in stored if subject.is_of(record)), None)
    if record is not None and (len(record.near), len(record.far)) == (2, 2):
        same = (len(record.absolute), len(record.relative)) == (len(subject.odds), len(RELATIVE_ODDS))
        if same and min(record.absolute_blocks, record.relative_blocks) >= 0:
            return record
    return _fresh(subject, len(subject.odds))


def _fresh(subject: Subject, alternatives: int) -> FailureRecord:
    return FailureRecord(
        signal=subject.signal, source=subject.source, against=subject.against, since=subject.since, limit=subject.limit,
        near=(0.0, 0.0), far=(0.0, 0.0), absolute=OnsetMixture.of(alternatives).logs,
        relative=OnsetMixture.of(len(RELATIVE_ODDS)).logs,
    )  # fmt: skip


def _add(record: FailureRecord, number: int, period: FailureCounts, subject: Subject) -> FailureRecord:
    stable, canary = _requests(period.stable, period.stable_arrived), _requests(period.canary, period.canary_arrived)
    passed = number + 1 - record.until
    near = _forgetting(record.near, math.exp(-passed / NEAR_PERIODS), (period.stable_failed, stable))
    lost, far = min(passed / FAR_PERIODS, stable / FAR_REQUESTS), record.far
    if subject.against:  # the few requests that the one before a promoted revision still has show no share
        far = _forgetting(far, math.exp(-lost), (period.stable_failed, stable))
    concurrent = stable >= CONCURRENT * canary
    excused = subject.ratio * near[0] / near[1] if near[1] >= MIN_NEAR else 0.0
    earlier = _upper(far) if near[1] >= GONE else _likely(far, record.limit)
    null = max(record.limit, excused, 0.0 if concurrent else earlier)
    ceiling = MAX_SLICE_LOG * max(1, len(set(period.starts))) if subject.ceiling is None else subject.ceiling
    null = min(max(null, MIN_SHARE), MAX_SHARE)
    rates = [min(one, MAX_SHARE / null) for one in subject.odds]
    ratios = [period.canary_failed * math.log(rate) - canary * null * (rate - 1) for rate in rates]
    absolute = tuple([min(ceiling, ratio) for ratio in ratios])
    every, both = (
        OnsetMixture(record.absolute, record.absolute_blocks),
        OnsetMixture(record.relative, record.relative_blocks),
    )
    if canary:
        every = every.after(absolute, ABSOLUTE_SHARES, ABSOLUTE_PRIOR)
    says = period.canary_failed or period.stable_failed if concurrent else subject.ratio == 1
    if canary and says:
        relative = _relative(period, stable, subject.ratio * canary, ceiling) if concurrent else absolute
        both = both.after(relative, RELATIVE_SHARES, RELATIVE_PRIOR)
    # The recent periods begin again when the failures since their beginning are not too many.
    again = record.excess <= 0
    return replace(
        record, until=number + 1, near=near, far=far, total=_plus(record.total, period),
        absolute=every.logs, absolute_blocks=every.blocks, relative=both.logs, relative_blocks=both.blocks,
        excess=absolute[0] if again else record.excess + absolute[0],
        recent=_plus(FailureTotals() if again else record.recent, period),
        recent_from=number if again else record.recent_from,
    )  # fmt: skip


def _requests(ended: int, arrived: int) -> float:
    """The requests that could fail in a period: half of each counts when it comes, and half when it ends.

    A failure may come at once or at the end, so either alone would be too few for one kind of failure, when requests come in
    waves. The larger of both would be too many always, since they differ by chance. No period counts for less than half of
    the larger, and failures at twice the accepted share are no evidence for an alternative of four times. An engine's
    metrics do not tell when requests came.
    """
    return (ended + arrived) / 2 if arrived else float(ended)


def _forgetting(sums: tuple[float, ...], factor: float, counts: tuple[float, float]) -> tuple[float, ...]:
    return tuple([factor * old + new for old, new in zip(sums, counts, strict=True)])


def _upper(far: tuple[float, ...]) -> float:
    """The upper bound of the stable's share by its earlier requests; 0 when it has never had any."""
    failed, requests = far
    return (failed + 1 + UPPER_DEVIATIONS * math.sqrt(failed + 1)) / requests if requests >= 1 else 0.0


def _likely(far: tuple[float, ...], limit: float) -> float:
    """The likely share of a stable that has no requests any more, and will show no more of it: `limit` where it has never had any.

    The mean of a beta distribution that begins with one failure at the limit. The upper bound of a few requests would accept
    whatever the canary does, for good.
    """
    failed, requests = far
    return (failed + 1) / (requests + 1 / max(limit, MIN_SHARE))


def _relative(period: FailureCounts, stable: float, canary: float, ceiling: float) -> tuple[float, ...]:
    share, hits = canary / (canary + stable), period.canary_failed + period.stable_failed
    return tuple(
        min(ceiling, period.canary_failed * math.log(odds) - hits * math.log(1 - share + odds * share))
        for odds in RELATIVE_ODDS
    )


def _plus(total: FailureTotals, period: FailureCounts) -> FailureTotals:
    return FailureTotals(
        total.stable + period.stable,
        total.stable_failed + period.stable_failed,
        total.canary + period.canary,
        total.canary_failed + period.canary_failed,
        total.retried + period.canary_retried,
        total.fell_back + period.canary_fell_back,
    )
