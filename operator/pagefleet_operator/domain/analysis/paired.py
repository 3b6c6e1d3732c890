"""A sequential test of two concurrent samples: whether the canary's tail is heavier than the stable's by too much.

Requests are looked at in blocks of a few seconds. In each, a threshold b is the stable's quantile as estimated from
its *earlier* requests; a stable request is a hit above b, a canary request above (1 + increase) x b. If the canary is
no more than `increase` slower, its hits are at most as likely as the stable's, so that of the H hits of a block, given
their number, at most n_c / (n_s + n_c) are expected to be the canary's, whatever the load does to both: drift and
bursts that both revisions share cancel (Lindon & Malek, "Anytime-valid inference for multinomial count data", NeurIPS
2022, section 4: the split of concurrent counts as a test martingale). The likelihood ratios of odds > 1 are mixed
(Howard, Ramdas, McAuliffe & Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences", Annals of
Statistics 2021, section 3), and by Ville's inequality the mixture exceeds 1/alpha with probability at most alpha, at
any time. Hits are drawn without replacement, which is less dispersed than the binomial, so the ratio stays a
supermartingale (Hoeffding, JASA 1963, theorem 4). The uncertainty of b costs nothing: any earlier-known b is valid.

A request in flight, or one that ended without a measurement, is a hit in the block in which its age passes the bound
(`waits`). The block's requests are those that it decides about.

Where the measurement has buckets of its own (`edged`), b is one of their edges. A stable request that may lie above it
is a hit, and a canary request only when it certainly lies above (1 + increase) x b, which only ever lowers the evidence.

Requests are not independent (a queue on the canary's pod slows its neighbours): the logarithm is divided by the
dispersion of the blocks' hits around their common odds (quasi-likelihood; McCullagh & Nelder, "Generalized Linear
Models", 1989, chapter 9), at several lengths of time. A constant regression is no dispersion. No block may add more
than a share of the evidence that convicts. Both only ever lower the evidence.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Histogram
from pagefleet_operator.domain.analysis.waits import NO_WAITS, Waits, decided
from pagefleet_operator.domain.base.edged import Pair
from pagefleet_operator.domain.base.logarithms import MAX_EXPONENT, log_sum, value_of

ODDS = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
MIN_FIRST, MIN_RECENT = 2.0, 20.0  # stable requests above its quantile before the first estimate, and in a running one
SCALES = (1, 4, 16, 64)
PRIOR_GROUPS, PRIOR_DISPERSION = 10, 2.0  # the dispersion that is assumed before it can be measured


@dataclass(frozen=True)
class Block:
    """Some seconds of both revisions. `pair` has the same counts in the measurement's own buckets, if it has any.

    `waits` are the requests without a measurement, of the stable and of the canary.
    """

    stable: Histogram
    canary: Histogram
    pair: Pair | None = None
    waits: tuple[Waits, Waits] = (NO_WAITS, NO_WAITS)


@dataclass(frozen=True)
class BlockCounts:
    """Requests and hits of a block. The bucket that holds the bound is split, so the canary's are not whole numbers."""

    stable: float
    canary: float
    stable_hits: float
    canary_hits: float


class PairedTest:
    """The evidence of one signal in one stratum, block by block. `ceiling` (natural log) bounds a block's evidence."""

    def __init__(self, quantile: float, increase: float, ceiling: float) -> None:
        self._quantile, self._increase, self._ceiling = quantile, increase, ceiling
        self._recent: deque[Mapping[float, int]] = deque()  # by upper ends in seconds
        self._sum: dict[float, int] = {}
        self._count = 0
        self.blocks: list[BlockCounts] = []
        self.total = BlockCounts(0, 0, 0, 0.0)
        self._above = self._below = 0.0
        self._spread = (0, 1.0)  # of so many blocks
        self.logs = [0.0] * len(ODDS)
        self.threshold: float | None = None
        self.bound: float | None = None  # the bound of the canary's requests in the last block
        self.blind = False  # whether no edge of the histogram could serve as that bound

    def add(self, block: Block) -> None:
        """Judge a block by the stable's requests before it, then learn from its own stable requests."""
        self.threshold = self._estimate()
        if self.threshold is not None:
            self._judge(block, self.threshold)
        self._learn(_by_end(block))

    def _judge(self, block: Block, threshold: float) -> None:
        limit = (1 + self._increase) * threshold
        bound = limit if block.pair is None else block.pair.edge(limit)
        if bound is None:
            if block.stable and block.canary:
                self.bound, self.blind = None, True
            return
        counts = _count_block(block, threshold, bound)
        if counts.stable and counts.canary:
            self.bound, self.blind = bound, False
            self._add_counts(counts)
            self.logs = [log + self._ratio(counts, odds) for log, odds in zip(self.logs, ODDS, strict=True)]

    @property
    def odds(self) -> float:
        """`common_odds` of all blocks."""
        return (self._above + 0.5) / (self._below + 0.5)

    def spread(self) -> float:
        """`dispersion` of all blocks."""
        if self._spread[0] != len(self.blocks):
            self._spread = (len(self.blocks), dispersion(self.blocks))
        return self._spread[1]

    def _add_counts(self, counts: BlockCounts) -> None:
        total, both = self.total, counts.stable + counts.canary
        self.blocks.append(counts)
        self.total = BlockCounts(
            total.stable + counts.stable,
            total.canary + counts.canary,
            total.stable_hits + counts.stable_hits,
            total.canary_hits + counts.canary_hits,
        )
        self._above += counts.canary_hits * counts.stable / both
        self._below += counts.stable_hits * counts.canary / both

    def copied(self) -> PairedTest:
        result = copy.copy(self)
        result._recent, result._sum = self._recent.copy(), dict(self._sum)
        result.blocks = list(self.blocks)
        return result

    def _ratio(self, counts: BlockCounts, odds: float) -> float:
        total = counts.stable + counts.canary
        hits = counts.stable_hits + counts.canary_hits
        ratio = counts.canary_hits * math.log(odds) - hits * math.log((counts.stable + odds * counts.canary) / total)
        return min(self._ceiling, ratio)

    def _estimate(self) -> float | None:
        """The stable's quantile as far as it is known; None before enough requests."""
        if self._count < MIN_FIRST / (1 - self._quantile):
            return None
        passed, rank = 0, math.ceil(self._quantile * self._count)
        for end in sorted(self._sum):
            passed += self._sum[end]
            if passed >= rank:
                return end
        return None

    def _learn(self, stable: Mapping[float, int]) -> None:
        if not stable:
            return
        self._recent.append(stable)
        self._count += sum(stable.values())
        for end, number in stable.items():
            self._sum[end] = self._sum.get(end, 0) + number
        enough = MIN_RECENT / (1 - self._quantile)
        while self._count - sum(self._recent[0].values()) >= enough:
            old = self._recent.popleft()
            self._count -= sum(old.values())
            for end, number in old.items():
                self._sum[end] -= number


def _count_block(block: Block, threshold: float, bound: float) -> BlockCounts:
    if block.pair is not None:
        stable, canary = sketch.total(block.stable), sketch.total(block.canary)
        return BlockCounts(stable, canary, block.pair.stable_above(threshold), float(block.pair.canary_above(bound)))
    stable_waits, canary_waits = block.waits
    stable_count, stable_hits = decided(block.stable, stable_waits, threshold)
    canary_count, canary_hits = decided(block.canary, canary_waits, bound, sketch.share_above)
    return BlockCounts(stable_count, canary_count, stable_hits, canary_hits)


def _by_end(block: Block) -> dict[float, int]:
    """The stable's counts by the upper end of their bucket."""
    if block.pair is None:
        return {sketch.upper(bucket): number for bucket, number in block.stable.items()}
    counts: dict[float, int] = {}
    for (_, high), number in block.pair.stable.items():
        counts[high] = counts.get(high, 0) + number
    return counts


def evidence(tests: Sequence[PairedTest]) -> float:
    """The e-value of all strata together, above 0: their blocks are disjoint requests, so their ratios multiply."""
    logs = [sum(test.logs[index] for test in tests) for index in range(len(ODDS))]
    if max(logs) <= 0:
        return _mixed(logs)
    spread = max(test.spread() for test in tests)
    return _mixed([log / spread if log > 0 else log for log in logs])


def _mixed(logs: Sequence[float]) -> float:
    return value_of(max(-MAX_EXPONENT, log_sum(logs) - math.log(len(logs))))


def dispersion(blocks: Sequence[BlockCounts]) -> float:
    """The ratio of the scatter of the canary's hits around their common odds to that of independent requests.

    The expected split by the odds holds for what is rare. Where most requests of a block are hits, the others are split
    instead, by the inverse odds; a block in which all requests are hits, or none, scatters nothing. It is at least 1.
    """
    common = common_odds(blocks)
    residuals, variances = [], []
    for block in blocks:
        total, rare = block.stable + block.canary, block.stable_hits + block.canary_hits
        own, odds, sign = block.canary_hits, common, 1
        if rare > total / 2:
            rare, own, odds, sign = total - rare, block.canary - own, 1 / common, -1
        if not rare or total < 2:
            continue
        share = odds * block.canary / (block.stable + odds * block.canary)
        residuals.append(sign * (own - rare * share))
        variances.append(rare * share * (1 - share) * (total - rare) / (total - 1))
    widest = 1.0
    for scale in SCALES:
        groups = len(residuals) // scale
        squares = PRIOR_GROUPS * PRIOR_DISPERSION
        for group in range(groups):
            place = slice(group * scale, (group + 1) * scale)
            squares += sum(residuals[place]) ** 2 / max(1e-9, sum(variances[place]))
        widest = max(widest, squares / (groups + PRIOR_GROUPS))
    return widest


def common_odds(blocks: Sequence[BlockCounts]) -> float:
    """The ratio of the odds of a hit, canary to stable (Mantel & Haenszel, 1959), with a half added to both sides."""
    above = sum(s.canary_hits * s.stable / (s.stable + s.canary) for s in blocks) + 0.5
    below = sum(s.stable_hits * s.canary / (s.stable + s.canary) for s in blocks) + 0.5
    return above / below
