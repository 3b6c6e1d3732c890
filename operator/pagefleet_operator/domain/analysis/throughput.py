"""The throughput and cost signals of the guard: whether a request in flight on the canary gets fewer output tokens per second, and
whether an output token of the canary costs more at equal load.

The output tokens per second over the requests in flight are, by Little's law, what one request in flight gets: the inverse of
the gateways' time per output token. So it does not matter how many requests a revision has, or how long their answers are.
How many a replica runs at once does matter, because the tokens of a batch share its time. A canary has no more of them than
the stable, because it gets its weight only with the replicas for it, rounded up, and the picker levels work over all pods.

Both revisions are compared in blocks of BLOCK_SECONDS, prompts with others of their stratum: a wave of load that both feel is in both
sides of a block. Of a block only one bit counts: whether the canary is slower by more than is accepted. If it is not, this is
so in at most half of the blocks, whatever the distributions are (the sign test; Dixon & Mood, JASA 1946). The blocks are bets
against that, mixed over onsets (`onsets`), and a short time in which one replica is slow is a few blocks.

A token costs the price of a replica for an hour, divided by the tokens that the replica makes in it. At equal load, with as many requests
in flight on each replica, a replica makes as many times fewer tokens as a request in flight gets. So the costs have the ratio of
the prices times the ratio of the times per output token. The same blocks tell whether that is above the accepted increase.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis.adjusted.onsets import OnsetMixture, OnsetPrior
from pagefleet_operator.domain.analysis.verdict import (
    SUSPICIOUS,
    Outcome,
    Verdict,
    make_verdict,
    no_measurement,
    record_without_latency,
)
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.base.logarithms import value_of
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.status import SignalRecord

THROUGHPUT, COST = "throughput", "cost"
REASONS = {THROUGHPUT: "Throughput", COST: "Cost"}
BLOCK_SECONDS = 30.0
MIN_BLOCK_REQUESTS = 4  # of each revision, in strata that both have
MIN_BLOCKS = 6  # before it can pass
SHOWN_BLOCKS = 10  # the costs that a verdict states are of the latest
_LOGS = tuple(math.log(sketch.upper(bucket)) for bucket in range(sketch.LAST + 1))
SHARES, PRIOR = (0.75, 0.9, 0.97), OnsetPrior(60.0)  # alternatives: of the blocks in which the canary is slower


@dataclass
class _Sum:
    """Measurements and the sum of their logarithms."""

    count: int = 0
    logs: float = 0.0


@dataclass(frozen=True)
class _Block:
    """The logarithm of how much slower the canary's tokens came than the stable's, both revisions' own, and all output tokens
    of the stable."""

    difference: float
    stable: _Sum
    canary: _Sum
    tokens: int


@dataclass(frozen=True)
class Prices:
    """What a replica of each revision costs for an hour, and the number of the stable's ready replicas."""

    stable: float
    canary: float
    replicas: int

    @property
    def log_ratio(self) -> float:
        """The logarithm of the canary's price over the stable's; 0 where replicas cost nothing."""
        return math.log(self.canary / self.stable) if min(self.stable, self.canary) > 0 else 0.0


@dataclass(frozen=True)
class _Question:
    """Whether the canary is worse than `limit`, a difference of logarithms. It is `worse` by that share, where `accepted` would be."""

    name: str
    limit: float
    worse: float
    accepted: float


def judge(canary: Iterable[Slice], stable: Iterable[Slice], max_decrease: float, level: float) -> Verdict:
    """Compare the revisions by their slices of the same time, at the error level `level`."""
    blocks, limit = _blocks(canary, stable), -math.log(1 - max_decrease)
    value, shown = _evidence(blocks, limit, level)
    slow = sum(block.difference > limit for block in shown)
    decrease = 1 - math.exp(-_median(shown)) if shown else 0.0
    question = _Question(THROUGHPUT, limit, decrease, max_decrease)
    return _verdict(question, blocks, _sentence(shown, slow, decrease, max_decrease), value, level)


def judge_cost(
    canary: Iterable[Slice], stable: Iterable[Slice], prices: Prices | None, max_increase: float, level: float
) -> Verdict:
    """Compare what an output token costs, at the error level `level`. `prices` is None where a price is not known."""
    if prices is None:
        return no_measurement(COST, f"{COST}: the price of a replica is not known for both revisions")
    blocks = [replace(block, difference=block.difference + prices.log_ratio) for block in _blocks(canary, stable)]
    limit = math.log(1 + max_increase)
    value, shown = _evidence(blocks, limit, level)
    dear = sum(block.difference > limit for block in shown)
    increase = math.exp(_median(shown)) - 1 if shown else 0.0
    text = (
        f"{COST}: {_costs(blocks, prices, increase)}; at the same time and for like prompts {increase:+.0%}, "
        f"limit {max_increase:+.0%}; dearer than that in {dear} of {len(shown)} blocks; a replica costs {prices.canary:g} an "
        f"hour, one of the stable {prices.stable:g}"
    )
    return _verdict(_Question(COST, limit, increase, max_increase), blocks, text, value, level)


def _evidence(blocks: Sequence[_Block], limit: float, level: float) -> tuple[float, Sequence[_Block]]:
    """Bet on the blocks whose difference is above the limit. Return the evidence, and the blocks whose numbers are stated: where it
    convicts those since the likeliest onset (as in `adjusted.suspects`), because good ones before would hide what is worse now."""
    mixture, shares, since, excess = OnsetMixture.of(len(SHARES)), (1 / len(SHARES),) * len(SHARES), 0, 0.0
    for number, block in enumerate(blocks):
        beyond = block.difference > limit
        gains = [math.log(2 * (share if beyond else 1 - share)) for share in SHARES]
        mixture, excess = mixture.after(gains, shares, PRIOR), excess + gains[0]
        if excess <= 0:
            since, excess = number + 1, 0.0
    value = value_of(mixture.log)
    return value, blocks[since:] if value >= 1 / level else blocks


def _verdict(question: _Question, blocks: Sequence[_Block], text: str, value: float, level: float) -> Verdict:
    name, worse = question.name, question.worse
    requests = sum(block.canary.count for block in blocks), sum(block.stable.count for block in blocks)
    proven, suspicious = value >= 1 / level, value >= SUSPICIOUS or worse > question.accepted
    if proven and worse > 0:
        outcome = Outcome.REGRESSED
    elif len(blocks) < MIN_BLOCKS:
        outcome, text = (
            Outcome.INCONCLUSIVE,
            f"{name}: {len(blocks)} of the {MIN_BLOCKS} blocks needed ({BLOCK_SECONDS:g} s with at least {MIN_BLOCK_REQUESTS} streamed requests of each revision)",
        )
    elif suspicious:
        outcome, text = Outcome.INCONCLUSIVE, f"suspicious, not proven: {text}"
    else:
        outcome = Outcome.PASSED
    record = record_without_latency(name, worse, question.accepted, requests[0], value)
    signal = SignalRecord(name, "", outcome.value, requests[1], requests[0], evidence=value, message=text)
    return make_verdict(outcome, record, text, None, REASONS[name] if outcome is Outcome.REGRESSED else "", (signal,))


def _sentence(blocks: Sequence[_Block], slow: int, decrease: float, max_decrease: float) -> str:
    canary, stable = (_tokens_per_second([getattr(block, name) for block in blocks]) for name in ("canary", "stable"))
    return (
        f"{THROUGHPUT}: a canary request gets {canary:.1f} output tokens/s, one of the stable {stable:.1f}; at the same time and "
        f"for like prompts {-decrease:+.0%}, limit {-max_decrease:+.0%}; worse than that in {slow} of {len(blocks)} blocks"
    )


def _costs(blocks: Sequence[_Block], prices: Prices, increase: float) -> str:
    """What 1,000 output tokens cost at the load of the stable's ready replicas. The newest block may have just begun."""
    shown = blocks[-SHOWN_BLOCKS - 1 : -1]
    tokens = sum(block.tokens for block in shown)
    if not tokens or not prices.replicas:
        return "what 1,000 output tokens of the stable cost is not known"
    cost = prices.stable * prices.replicas / 3.6 / (tokens / (BLOCK_SECONDS * len(shown)))
    return f"1,000 output tokens cost {cost * (1 + increase):.3g} on the canary, {cost:.3g} on the stable"


def _median(blocks: Sequence[_Block]) -> float:
    return median(block.difference for block in blocks)


def _tokens_per_second(sums: Sequence[_Sum]) -> float:
    """The geometric mean."""
    count = sum(one.count for one in sums)
    return math.exp(-sum(one.logs for one in sums) / count) if count else 0.0


def _blocks(canary: Iterable[Slice], stable: Iterable[Slice]) -> list[_Block]:
    """The blocks that can be compared, in the order of time."""
    stable = list(stable)
    own, others, tokens = _sums(canary), _sums(stable), Counter[int]()
    for piece in stable:
        tokens[math.floor(piece.start / BLOCK_SECONDS)] += piece.tokens or 0
    blocks = []
    for number in sorted(own.keys() & others.keys()):
        difference, weights, sums = 0.0, 0.0, (_Sum(), _Sum())
        for stratum in own[number].keys() & others[number].keys():
            mine, theirs = own[number][stratum], others[number][stratum]
            weight = mine.count * theirs.count / (mine.count + theirs.count)
            difference += weight * (mine.logs / mine.count - theirs.logs / theirs.count)
            weights += weight
            for total, one in zip(sums, (theirs, mine), strict=True):
                total.count, total.logs = total.count + one.count, total.logs + one.logs
        if min(total.count for total in sums) >= MIN_BLOCK_REQUESTS:
            blocks.append(_Block(difference / weights, *sums, tokens[number]))
    return blocks


def _sums(slices: Iterable[Slice]) -> dict[int, dict[str, _Sum]]:
    """By block and stratum, without empty ones."""
    sums: dict[int, dict[str, _Sum]] = {}
    for piece in slices:
        histogram = piece.latency.get("tpot", {})
        if not histogram:
            continue
        block = sums.setdefault(math.floor(piece.start / BLOCK_SECONDS), {})
        total = block.setdefault(piece.stratum, _Sum())
        total.count += sum(histogram.values())
        total.logs += sum(count * _LOGS[bucket] for bucket, count in histogram.items())
    return {number: {name: one for name, one in own.items() if one.count} for number, own in sums.items()}
