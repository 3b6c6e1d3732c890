"""Compares a benchmark with an earlier one: differences of quantiles, their intervals, and an e-value. Pure.

The interval is the circular block bootstrap's (Politis & Romano, "A circular block-resampling procedure for stationary
data", 1992): requests that wait in the same queue are slow together, and drawing them one by one would take their number
for more evidence than it is. The e-value asks the guard's question of these runs: are more requests slower than the
earlier quantile than 1 - q allow (`domain/analysis/sequential.py`)? Neither number accounts for other load on the machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pagefleet_cli.bench.result import quantile
from pagefleet_cli.bench.run import Run
from pagefleet_operator.domain.analysis.sequential import Evidence, e_value, upper_rank

RESAMPLES, MIN_RESAMPLES, DRAWS = 1000, 400, 1_000_000  # fewer for long runs: an answer within seconds
CONFIDENCE = 0.99
MIN_PIECES, MAX_PIECES = 20, 600


class Finding(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    MORE = "more"
    LESS = "less"
    SAME = "no difference shown"
    UNKNOWN = "too few requests"


@dataclass(frozen=True)
class Difference:
    """A quantile then and now in seconds; `change` = now / then - 1, with its interval. `evidence`: the e-value."""

    q: float
    before: float | None
    after: float | None
    change: float | None
    low: float | None
    high: float | None
    evidence: float
    finding: Finding


def difference(before: Sequence[float], after: Sequence[float], q: float, seed: int = 0) -> Difference:
    """`before` and `after` in seconds, in the order of the requests. A difference is shown when its 99 % interval excludes zero."""
    old, new = quantile(sorted(before), q), quantile(sorted(after), q)
    if old is None or new is None or old <= 0 or min(len(before), len(after)) < needed(q):
        change = new / old - 1 if old and new is not None else None
        return Difference(q, old, new, change, None, None, 1.0, Finding.UNKNOWN)
    source = random.Random(seed)  # noqa: S311 - a statistic, not secrets
    times = max(MIN_RESAMPLES, min(RESAMPLES, DRAWS // (len(before) + len(after))))
    low, high = _interval(
        [_ratio(_resampled(source, after, q), _resampled(source, before, q)) - 1 for _ in range(times)]
    )
    finding = _finding(low, high, Finding.SLOWER, Finding.FASTER)
    return Difference(q, old, new, new / old - 1, low, high, _evidence(sorted(before), after, q), finding)


def difference_to(
    old: float | None, bounds: tuple[float, float] | None, after: Sequence[float], q: float, seed: int = 0
) -> Difference:
    """A run against a quantile that a report states, whose 99 % interval is `bounds`: both intervals count, so it is a cautious one."""
    new = quantile(sorted(after), q)
    if old is None or new is None or bounds is None or min(old, *bounds) <= 0 or len(after) < needed(q):
        change = new / old - 1 if old and new is not None else None
        return Difference(q, old, new, change, None, None, 1.0, Finding.UNKNOWN)
    source = random.Random(seed)  # noqa: S311 - a statistic, not secrets
    times = max(MIN_RESAMPLES, min(RESAMPLES, DRAWS // len(after)))
    least, most = _interval([_resampled(source, after, q) for _ in range(times)])
    low, high = least / bounds[1] - 1, most / bounds[0] - 1
    finding = _finding(low, high, Finding.SLOWER, Finding.FASTER)
    return Difference(q, old, new, new / old - 1, low, high, 1.0, finding)


def throughput_to(was: float, after: Run, seed: int = 0) -> Difference:
    """The output tokens per second against those that a report states, which are taken for exact."""
    pieces = _by_time(after)
    return _rates(was, _mean(pieces), len(pieces), lambda source: _mean(_blocks(source, pieces)) / was, seed)


def throughput(before: Run, after: Run, seed: int = 0) -> Difference:
    """The output tokens per second, then and now. MORE or LESS is shown when the 99 % interval excludes zero.

    Each run is divided into equal pieces of time, about a second each; an answer's tokens count in the piece in which it ended. Blocks of
    neighbouring pieces are drawn, because a server that is behind stays behind for a while.
    """
    old, new = _by_time(before), _by_time(after)

    def ratio(source: random.Random) -> float:
        return _mean(_blocks(source, new)) / max(_mean(_blocks(source, old)), 1e-9)

    return _rates(_mean(old), _mean(new), min(len(old), len(new)), ratio, seed)


def _rates(was: float, now: float, pieces: int, ratio: Callable[[random.Random], float], seed: int) -> Difference:
    """Compare two rates. `ratio` draws their ratio from resamples of the `pieces` of time."""
    if was <= 0 or pieces < MIN_PIECES:
        return Difference(0.5, was or None, now or None, None, None, None, 1.0, Finding.UNKNOWN)
    source = random.Random(seed)  # noqa: S311 - a statistic, not secrets
    low, high = _interval([ratio(source) - 1 for _ in range(MIN_RESAMPLES)])
    return Difference(0.5, was, now, now / was - 1, low, high, 1.0, _finding(low, high, Finding.MORE, Finding.LESS))


def _interval(drawn: Sequence[float]) -> tuple[float, float]:
    """The ends of the 99 % interval of what was drawn."""
    ordered, tail = sorted(drawn), (1 - CONFIDENCE) / 2
    return ordered[math.floor(tail * len(ordered))], ordered[math.ceil((1 - tail) * len(ordered)) - 1]


def _finding(low: float, high: float, above: Finding, below: Finding) -> Finding:
    return above if low > 0 else below if high < 0 else Finding.SAME


def failures(before: tuple[int, int], after: tuple[int, int]) -> tuple[float, Finding]:
    """(p, finding) of two counts of (failed, all) requests, by Fisher's exact test (two-sided; Statistical Methods for Research Workers,
    1925, section 21.02). A difference is shown when p is below 1 %."""
    (failed, count), (failing, counted) = before, after
    total, every = failed + failing, count + counted
    if not count or not counted:
        return 1.0, Finding.UNKNOWN
    weights = [
        _logs(count, k) + _logs(counted, total - k) - _logs(every, total)
        for k in range(max(0, total - counted), min(total, count) + 1)
    ]
    seen = _logs(count, failed) + _logs(counted, failing) - _logs(every, total)
    p = min(1.0, sum(math.exp(weight) for weight in weights if weight <= seen + 1e-9))
    if p >= 1 - CONFIDENCE:
        return p, Finding.SAME
    return p, Finding.MORE if failing * count > failed * counted else Finding.LESS


def _logs(n: int, k: int) -> float:
    """The logarithm of n over k."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _by_time(run: Run) -> list[float]:
    """Output tokens per second in each piece of a run."""
    count = max(MIN_PIECES, min(MAX_PIECES, int(run.seconds)))
    if run.seconds <= 0:
        return []
    pieces = [0.0] * count
    for sample in run.samples:
        if not sample.error:
            at = min(count - 1, int((sample.at + sample.e2e) / run.seconds * count))
            pieces[at] += sample.output_tokens * count / run.seconds
    return pieces


def _ratio(now: float, then: float) -> float:
    """A resample's quantile may be 0 where the whole run's is not: an answer in one piece has no time between its tokens."""
    return now / then if then else math.inf if now else 1.0


def _mean(series: Sequence[float]) -> float:
    return sum(series) / len(series) if series else 0.0


def sentence(signal: str, result: Difference) -> str:
    """One difference in words."""
    name = f"{signal} p{round(100 * result.q, 1):g}"
    if result.finding is Finding.UNKNOWN or result.change is None or result.low is None or result.high is None:
        return f"{name}: {Finding.UNKNOWN.value} for an interval ({needed(result.q)} are needed in both runs)"
    interval = f"{result.low:+.0%} .. {result.high:+.0%} with {CONFIDENCE:.0%} confidence"
    proof = f"; e-value {result.evidence:.3g} against no more slow requests than before"
    return f"{name}: {result.change:+.1%} ({interval}): {result.finding.value}" + (proof if result.evidence > 1 else "")


def needed(q: float) -> int:
    """Fewest values of which several lie above the quantile."""
    return math.ceil(5 / (1 - q) - 1e-9)


def _resampled(source: random.Random, series: Sequence[float], q: float) -> float:
    """The quantile of one resample: blocks of neighbours from anywhere, the end joined to the beginning."""
    n = len(series)
    return sorted(_blocks(source, series))[max(1, math.ceil(q * n)) - 1]


def _blocks(source: random.Random, series: Sequence[float]) -> list[float]:
    n, length = len(series), math.isqrt(len(series))
    drawn: list[float] = []
    while len(drawn) < n:
        start = source.randrange(n)
        drawn += series[start : start + length]
        drawn += series[: max(0, start + length - n)]
    return drawn[:n]


def _evidence(before: Sequence[float], after: Sequence[float], q: float) -> float:
    """Against "at most 1 - q of the requests are slower than the earlier quantile's upper bound". `before` ascending."""
    bound = before[upper_rank(len(before), q, (1 - CONFIDENCE) / 2) - 1]
    return e_value(Evidence(sum(value > bound for value in after), len(after)), 1 - q)
