"""Evidence that a share of hits has risen, from an unknown minute on, in a watch without an end.

Each minute a new bet with a small stake begins, and the earlier bets continue with what they have won (the
Shiryaev-Roberts form; Shin, Ramdas & Rinaldo, "E-detectors: a nonparametric framework for sequential change detection", New England Journal of
Statistics in Data Science 2024). The stakes of MEMORY_MINUTES minutes add up to one, so that without a rise the sum of all
bets exceeds 1/alpha within that time with a probability of at most alpha. Minutes without a rise do not delay the proof of a
later one, and the sum falls again when the rise is over. A stake is spread over several alternatives, as in `sequential`.

Hits come in bursts, so the logarithm is divided by their dispersion, and no minute adds more than `ceiling`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pagefleet_operator.domain.analysis.sequential import ODDS
from pagefleet_operator.domain.base.logarithms import log_add, log_sum

MEMORY_MINUTES = 4 * 7 * 24 * 60
BEGINNING = -math.log(MEMORY_MINUTES * len(ODDS))  # the logarithm of what one alternative gets each minute
FLOOR = -700.0


@dataclass(frozen=True)
class Bet:
    """How a minute counts: the share of hits that is accepted, their dispersion, and the bounds of the logarithms."""

    share: float
    dispersion: float
    ceiling: float
    maximum: float


def after(logs: Sequence[float], hits: int, trials: int, bet: Bet) -> tuple[float, ...]:
    """The logarithms, one for each alternative, after one more minute; `logs` is empty at first."""
    before = logs if len(logs) == len(ODDS) else (FLOOR,) * len(ODDS)
    return tuple(
        max(FLOOR, min(bet.maximum, log_add(log, BEGINNING) + _gain(hits, trials - hits, odds, bet)))
        for log, odds in zip(before, ODDS, strict=True)
    )


def total(logs: Sequence[float]) -> float:
    """The logarithm of the whole evidence; >= log(1/alpha) convicts."""
    return log_sum(logs) if logs else FLOOR


def quiet(logs: Sequence[float]) -> bool:
    """Whether there is so little evidence that a watch may begin again without it."""
    return total(logs) <= math.log(2 / MEMORY_MINUTES)


def _gain(hits: int, misses: int, odds: float, bet: Bet) -> float:
    alternative = odds * bet.share / (1 - bet.share + odds * bet.share)
    ratio = hits * math.log(alternative / bet.share) + misses * math.log((1 - alternative) / (1 - bet.share))
    return min(bet.ceiling, ratio / bet.dispersion)
