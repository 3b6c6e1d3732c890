"""Protects the numbers of the throughput and cost signals, against values computed by hand: which blocks are compared and how strata are
weighted, from how many blocks on the evidence convicts, what passes and what is only suspicious, and what 1,000 tokens cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis import throughput
from pagefleet_operator.domain.analysis.adjusted.onsets import OnsetPrior
from pagefleet_operator.domain.analysis.throughput import Prices, judge, judge_cost
from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict
from pagefleet_operator.domain.status.observation import Slice

QUICK, SLOW = sketch.bucket_of(0.05), sketch.bucket_of(0.1)
RATIO = sketch.upper(SLOW) / sketch.upper(QUICK)  # about 2


def piece(block: int, bucket: int, count: int = 4, stratum: str = "", tokens: int | None = None) -> Slice:
    return Slice("g", 30.0 * block + 4, 2.0, "x", stratum, count, 0, latency={"tpot": {bucket: count}}, tokens=tokens)


def blocks(*buckets: int, count: int = 4, tokens: int = 0) -> list[Slice]:
    return [piece(number, bucket, count, tokens=tokens) for number, bucket in enumerate(buckets)]


def judged(canary: Sequence[int], level: float = 0.01) -> Verdict:
    """The verdict where the stable is QUICK in every block, and 20 % less is accepted."""
    return judge(blocks(*canary, count=5), blocks(*[QUICK] * len(canary)), 0.2, level)


def evidence(beyond: Sequence[bool]) -> float:
    """The mixture over onsets and alternatives, in plain numbers (Shiryaev's recursion)."""
    shares, prior = (0.75, 0.9, 0.97), OnsetPrior(60.0)
    sums = [0.0] * len(shares)
    for number, hit in enumerate(beyond):
        begins = prior.weight(number) / len(shares)
        sums = [(one + begins) * 2 * (share if hit else 1 - share) for one, share in zip(sums, shares, strict=True)]
    return sum(sums)


def test_a_slower_canary_is_convicted_when_the_evidence_is_as_rare_as_the_level() -> None:
    needed = next(n for n in range(1, 60) if evidence([True] * n) >= 100)
    before, after = judged([SLOW] * (needed - 1)), judged([SLOW] * needed)
    assert (before.outcome, before.reason) == (Outcome.INCONCLUSIVE, "")
    assert before.record.message.startswith("suspicious, not proven: throughput: ")
    assert (after.outcome, after.reason) == (Outcome.REGRESSED, "Throughput")
    assert after.record.evidence == pytest.approx(evidence([True] * needed))
    assert after.record.statistic == pytest.approx(1 - 1 / RATIO) and after.record.limit == 0.2
    (shown,) = after.signals
    assert (shown.signal, shown.stratum, shown.outcome) == ("throughput", "", "Regressed")
    assert (shown.stable_samples, shown.canary_samples, after.record.samples) == (4 * needed, 5 * needed, 5 * needed)
    assert (shown.evidence, shown.message) == (after.record.evidence, after.record.message)
    assert after.record.message == (
        f"throughput: a canary request gets {1 / sketch.upper(SLOW):.1f} output tokens/s, one of the stable "
        f"{1 / sketch.upper(QUICK):.1f}; at the same time and for like prompts {1 / RATIO - 1:+.0%}, limit -20%; "
        f"worse than that in {needed} of {needed} blocks"
    )


def test_the_evidence_is_of_the_order_of_the_blocks() -> None:
    for pattern in ("QSQSQS", "SSSQQQ", "QQQSSS"):
        found = judged([SLOW if one == "S" else QUICK for one in pattern]).record.evidence
        assert found == pytest.approx(evidence([one == "S" for one in pattern]))


@pytest.mark.parametrize(("number", "outcome"), [(5, Outcome.INCONCLUSIVE), (6, Outcome.PASSED)])
def test_a_canary_that_is_as_fast_passes_after_six_blocks(number: int, outcome: Outcome) -> None:
    verdict = judged([QUICK] * number)
    assert (verdict.outcome, verdict.reason, verdict.record.statistic) == (outcome, "", 0.0)
    words = "5 of the 6 blocks needed (30 s with at least 4 streamed requests of each revision)"
    assert (words in verdict.record.message) is (outcome is Outcome.INCONCLUSIVE)


def test_slower_in_most_blocks_is_suspicious_though_the_evidence_is_small() -> None:
    verdict = judged([SLOW] * 4 + [QUICK] * 3)
    assert evidence([True] * 4 + [False] * 3) < 10
    assert (verdict.outcome, verdict.record.message[:23]) == (Outcome.INCONCLUSIVE, "suspicious, not proven:")


def test_much_evidence_of_late_is_suspicious_though_most_blocks_were_good() -> None:
    pattern = [QUICK] * 14 + [SLOW] * 13
    assert evidence([one == SLOW for one in pattern]) >= 10
    verdict = judged(pattern, level=1e-12)
    assert (verdict.outcome, verdict.record.statistic) == (Outcome.INCONCLUSIVE, 0.0)
    assert verdict.record.message.startswith("suspicious, not proven: ")


@pytest.mark.parametrize("good", [20, 200])
def test_a_canary_that_becomes_slower_is_convicted_however_long_it_was_not(good: int) -> None:
    pattern = [QUICK] * good + [SLOW] * 19
    assert evidence([one == SLOW for one in pattern]) >= 100
    found = judged(pattern)
    assert (found.outcome, found.reason) == (Outcome.REGRESSED, "Throughput")
    assert found.record.statistic == pytest.approx(1 - 1 / RATIO) and found.record.samples == 5 * (good + 19)
    assert found.record.message.endswith(f" {1 / RATIO - 1:+.0%}, limit -20%; worse than that in 19 of 19 blocks")


@pytest.mark.parametrize(("canary", "stable", "compared"), [(4, 4, 1), (3, 9, 0), (9, 3, 0)])
def test_a_block_needs_four_requests_of_each(canary: int, stable: int, compared: int) -> None:
    assert len(throughput._blocks(blocks(QUICK, count=canary), blocks(QUICK, count=stable))) == compared


def test_prompts_are_compared_with_others_of_their_stratum() -> None:
    own = [piece(0, SLOW, 4, "short"), piece(0, QUICK, 8, "long"), piece(0, SLOW, 9, "mine alone")]
    others = [piece(0, QUICK, 4, "short"), piece(0, QUICK, 8, "long"), piece(0, SLOW, 9, "theirs")]
    (block,) = throughput._blocks(own, others)
    assert block.difference == pytest.approx(2 * math.log(RATIO) / (2 + 4))
    assert (block.canary.count, block.stable.count) == (12, 12)
    assert block.canary.logs == pytest.approx(4 * math.log(sketch.upper(SLOW)) + 8 * math.log(sketch.upper(QUICK)))
    assert block.stable.logs == pytest.approx(12 * math.log(sketch.upper(QUICK)))


def test_only_blocks_of_both_revisions_count_in_the_order_of_time() -> None:
    found = throughput._blocks(blocks(SLOW, QUICK, SLOW)[::-1], blocks(QUICK, QUICK, QUICK, QUICK, tokens=7)[:2])
    assert [block.difference > 0 for block in found] == [True, False]
    assert [block.tokens for block in found] == [7, 7]
    empty = Slice("g", 4.0, 2.0, "x", "", 0, 0, latency={"tpot": {QUICK: 0}})
    assert throughput._blocks([empty], blocks(QUICK)) == []


def test_every_time_that_a_gateway_can_report_counts() -> None:
    last = sketch.LAST
    (block,) = throughput._blocks(blocks(last), blocks(last))
    assert block.difference == 0.0 and block.canary.logs == pytest.approx(4 * math.log(sketch.upper(last)))


def test_without_any_block_nothing_is_said() -> None:
    verdict = judge([], [], 0.2, 0.01)
    assert (verdict.outcome, verdict.record.statistic, verdict.record.samples) == (Outcome.INCONCLUSIVE, 0.0, 0)
    cost = judge_cost([], [], Prices(1.0, 1.0, 1), 0.1, 0.01)
    assert (cost.outcome, cost.record.statistic) == (Outcome.INCONCLUSIVE, 0.0)
    assert throughput._tokens_per_second([]) == 0.0


def test_a_replica_of_twice_the_price_makes_a_token_twice_as_dear() -> None:
    both = blocks(*[QUICK] * 3, tokens=600)
    verdict = judge_cost(both, both, Prices(3.6, 7.2, 2), 0.1, 0.01)
    assert verdict.record.statistic == pytest.approx(1.0) and verdict.record.limit == 0.1
    verdict = judge_cost(blocks(*[QUICK] * 9), blocks(*[QUICK] * 9, tokens=600), Prices(3.6, 7.2, 2), 0.1, 0.5)
    assert (verdict.outcome, verdict.reason) == (Outcome.REGRESSED, "Cost")
    assert verdict.record.message == (
        "cost: 1,000 output tokens cost 0.2 on the canary, 0.1 on the stable; at the same time and for like prompts +100%, "
        "limit +10%; dearer than that in 9 of 9 blocks; a replica costs 7.2 an hour, one of the stable 3.6"
    )


def test_a_cheaper_replica_may_be_slower() -> None:
    slower = blocks(*[SLOW] * 8)
    assert judge_cost(slower, blocks(*[QUICK] * 8), Prices(2.0, 1.0, 1), 0.1, 0.01).outcome is Outcome.PASSED
    dear = judge_cost(slower, blocks(*[QUICK] * 8), Prices(1.0, 1.0, 1), 0.1, 0.01)
    assert dear.record.statistic == pytest.approx(RATIO - 1)


def test_the_cost_is_of_the_latest_ten_blocks_but_the_newest() -> None:
    tokens = [9000] * 5 + [2100] + [400] * 8 + [700] + [0]  # ten of 600 in the mean
    stable = [piece(number, QUICK, tokens=count) for number, count in enumerate(tokens)]
    message = judge_cost(blocks(*[QUICK] * 16), stable, Prices(3.6, 3.6, 2), 0.1, 0.01).record.message
    assert "1,000 output tokens cost 0.1 on the canary, 0.1 on the stable" in message


@pytest.mark.parametrize(("tokens", "replicas"), [(0, 2), (600, 0)])
def test_a_cost_that_is_not_known_is_not_stated(tokens: int, replicas: int) -> None:
    stable = blocks(*[QUICK] * 7, tokens=tokens)
    message = judge_cost(blocks(*[QUICK] * 7), stable, Prices(3.6, 3.6, replicas), 0.1, 0.01).record.message
    assert "what 1,000 output tokens of the stable cost is not known" in message


def test_without_a_price_nothing_is_judged() -> None:
    verdict = judge_cost(blocks(QUICK), blocks(QUICK), None, 0.1, 0.01)
    assert (verdict.outcome, verdict.record.signal) == (Outcome.INCONCLUSIVE, "cost")
    assert verdict.record.message == "cost: the price of a replica is not known for both revisions"


@pytest.mark.parametrize(
    ("stable", "canary", "expected"),
    [(2.0, 6.0, math.log(3)), (0.5, 0.25, -math.log(2)), (0.0, 3.0, 0.0), (3.0, 0.0, 0.0)],
)
def test_prices_are_compared_where_replicas_cost_something(stable: float, canary: float, expected: float) -> None:
    assert Prices(stable, canary, 1).log_ratio == pytest.approx(expected)
