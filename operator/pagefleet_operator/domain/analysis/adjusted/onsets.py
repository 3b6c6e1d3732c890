"""A sequential test that finds a change whenever it begins: a mixture of test martingales over the time of the onset.

A likelihood ratio that has grown smaller in many good minutes must first grow back before it can convict a revision that
has just become bad. So the evidence is a sum over onsets: for the onset k the product of the likelihood ratios of the
blocks from k on, times a prior weight w_k that does not depend on the data. With S for the sum over the onsets up to
now, a block with the ratio L gives

    S <- (S + w_k) * L.

While the weights add up to at most 1, this is a mixture of test martingales, and by Ville's inequality S exceeds
1/alpha with probability at most alpha under the null, at any time (Howard, Ramdas, McAuliffe & Sekhon, Annals of
Statistics 2021, section 3, for mixtures). With equal weights it is Shiryaev's and Roberts' statistic, an e-detector
(Shin, Ramdas & Rinaldo, "E-detectors: a nonparametric framework for sequential change detection", NEJSDS 2023): such a sum
exceeds A with probability at most n * w * 1/A within n blocks, and so bounds the rate of false alarms, not their number.

The price of the unknown onset is log(1 / w_k) of evidence, less what neighbouring onsets add up to. Half of the weight is
on the first block, so a revision that is bad from the beginning costs log 2 = 0.7 more. Four numbers are the whole state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from pagefleet_operator.domain.base.logarithms import log_add, log_sum

FLOOR = -1e4  # the logarithm of a sum that holds nothing yet: JSON has no infinity
FIRST = 0.5  # weight of the first block


@dataclass(frozen=True)
class OnsetPrior:
    """The prior weights of the onsets.

    The first block has the weight FIRST. With `steady` 0 the other blocks share the rest, about equally for `horizon` blocks and
    less and less later on, so that all weights together are 1. Otherwise each of them has the weight `steady`.
    """

    horizon: float
    steady: float = 0.0

    def weight(self, block: int) -> float:
        if block == 0:
            return FIRST
        if self.steady:
            return self.steady
        return (1 - FIRST) * (self._later_than(block - 1) - self._later_than(block))

    def _later_than(self, block: int) -> float:
        """The part of the rest that is on later blocks than this one."""
        return 1 / (1 + block / self.horizon)


@lru_cache(maxsize=4096)  # all services count their blocks from 0
def _begins(weight: float, shares: tuple[float, ...]) -> tuple[float, ...]:
    """The logarithms of the prior weights of an onset, by alternative."""
    return tuple([math.log(weight * share) for share in shares])


@dataclass(frozen=True)
class OnsetMixture:
    """The evidence of several alternatives. `logs` are the natural logarithms of S, one of each; `blocks` counts the onsets."""

    logs: tuple[float, ...]
    blocks: int = 0

    @classmethod
    def of(cls, alternatives: int) -> OnsetMixture:
        """A mixture without data."""
        return cls((FLOOR,) * alternatives)

    def after(self, ratios: Sequence[float], shares: Sequence[float], prior: OnsetPrior) -> OnsetMixture:
        """Add a block: the logarithm of its likelihood ratio for each alternative. `shares` are the alternatives' prior weights.

        An onset must not be chosen by the block's outcome. Blocks that say nothing whatever happens may be left out.
        """
        begins = _begins(prior.weight(self.blocks), tuple(shares))
        logs = [
            max(FLOOR, log_add(log, begin) + ratio) for log, ratio, begin in zip(self.logs, ratios, begins, strict=True)
        ]
        return OnsetMixture(tuple(logs), self.blocks + 1)

    @property
    def log(self) -> float:
        """The logarithm of the evidence; from log(1/alpha) on it rejects the null at the level alpha."""
        return log_sum(self.logs)
