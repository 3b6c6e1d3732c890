"""Protects the numbers of the two-sample sequential test, by values computed by hand: from which requests of the stable it learns its
threshold, what counts as a hit on either side, what a block's hits weigh, and by how much requests that are slow together weigh less."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis import paired
from pagefleet_operator.domain.analysis.paired import Block, BlockCounts, PairedTest, common_odds, dispersion, evidence
from pagefleet_operator.domain.analysis.waits import Waits
from pagefleet_operator.domain.base.edged import Pair
from pagefleet_operator.domain.base.logarithms import MAX_EXPONENT

ALTERNATIVES = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
FREE = 1000.0  # a ceiling that no block reaches
QUICK, SLOW = 1, 500  # buckets
LEARNED = Block({QUICK: 8}, {})


def made(quantile: float = 0.75, increase: float = 0.15, ceiling: float = FREE) -> PairedTest:
    return PairedTest(quantile, increase, ceiling)


def seen(*blocks: Block, test: PairedTest | None = None) -> PairedTest:
    test = test or made()
    for block in blocks:
        test.add(block)
    return test


def ratios(counts: BlockCounts) -> list[float]:
    """The logarithms of the likelihood ratios of the canary's hits among all, by alternative."""
    total, hits = counts.stable + counts.canary, counts.stable_hits + counts.canary_hits
    null = counts.canary / total
    found = []
    for odds in ALTERNATIVES:
        share = odds * counts.canary / (counts.stable + odds * counts.canary)
        own, others = counts.canary_hits, hits - counts.canary_hits
        found.append(own * math.log(share / null) + others * math.log((1 - share) / (1 - null)))
    return found


def test_the_alternatives_reach_from_barely_worse_to_nearly_always() -> None:
    assert paired.ODDS == ALTERNATIVES


@pytest.mark.parametrize(
    ("earlier", "threshold"),
    [
        ([{1: 7}], None),  # two of eight lie above the 75 % quantile, of seven not yet two
        ([{1: 8}], 1),
        ([{1: 5}, {}, {9: 3}], 9),  # the quantile is the sixth of eight
        ([{9: 2}, {1: 6}], 1),
        ([{9: 3, 4: 1}, {1: 4}], 9),
        ([{9: 2}, {4: 1, 1: 6}], 4),  # the seventh of nine
    ],
)
def test_the_threshold_is_the_quantile_of_earlier_requests_once_two_lie_above_it(
    earlier: list[dict[int, int]], threshold: int | None
) -> None:
    test = seen(*(Block(counts, {SLOW: 9}) for counts in earlier))
    assert test.blocks == [], "without a threshold a block is not judged"
    test.add(Block({SLOW: 99}, {}))
    assert test.threshold == (None if threshold is None else sketch.upper(threshold))


@pytest.mark.parametrize(("later", "threshold"), [(79, QUICK), (80, SLOW)])
def test_old_requests_are_forgotten_once_twenty_of_later_ones_lie_above_the_quantile(
    later: int, threshold: int
) -> None:
    """The 75 % quantile of 80 requests leaves twenty. A block without requests changes nothing."""
    old = Block({QUICK: 300}, {})
    test = seen(old, Block({SLOW: later - 30}, {}), Block({}, {}), Block({SLOW: 30}, {}), Block({}, {}))
    assert test.threshold == sketch.upper(threshold)


def test_a_hit_lies_above_the_threshold_and_the_canary_s_above_the_accepted_increase_too() -> None:
    """With an accepted increase by two buckets the canary's bucket 3 holds none above the bound, and bucket 4 all."""
    test = made(increase=sketch.GROWTH**2 - 1)
    test.add(LEARNED)
    test.add(Block({QUICK: 5, 2: 3, SLOW: 1}, {QUICK: 2, 3: 5, 4: 2, SLOW: 1}))
    (counts,) = test.blocks
    assert (counts.stable, counts.stable_hits) == (9, 4)
    assert (counts.canary, counts.canary_hits) == (pytest.approx(10), pytest.approx(3))
    assert test.bound == pytest.approx(sketch.upper(3)) and not test.blind


def test_the_canary_s_bucket_that_holds_the_bound_is_split() -> None:
    test = made(increase=sketch.GROWTH**1.75 - 1)
    test.add(LEARNED)
    test.add(Block({2: 4}, {3: 8}))
    assert test.blocks[0].canary_hits == pytest.approx(2)


def test_requests_that_wait_beyond_the_bound_are_hits_before_they_are_measured() -> None:
    test = made()
    test.add(LEARNED)
    test.add(Block({QUICK: 5}, {QUICK: 2}, waits=(Waits(unmeasured={SLOW: 1}), Waits(end={SLOW: 4, 2: 9}))))
    assert test.blocks == [BlockCounts(6, 6, 1, 4)]


EDGES = (0.1, 0.2, 0.4)
COARSE = Pair({(0.0, 0.1): 10, (0.1, 0.2): 2}, {(0.1, 0.2): 3, (0.2, 0.4): 4, (0.4, math.inf): 1}, EDGES)


def test_with_edges_of_its_own_a_canary_s_hit_lies_certainly_above_the_first_edge_that_is_not_below_the_bound() -> None:
    """The counts in the sketch's buckets are of the same requests, and say how many they are."""
    block = Block({QUICK: 12}, {QUICK: 8}, COARSE)
    test = seen(block, block)
    assert (test.threshold, test.bound, test.blind) == (0.1, 0.2, False)
    assert test.blocks == [BlockCounts(12, 8, 2, 5)]


def test_buckets_with_one_upper_end_are_one_step_of_the_quantile() -> None:
    overlapping = Pair({(0.0, 0.1): 3, (0.05, 0.1): 3, (0.1, 0.2): 2}, {}, EDGES)
    assert seen(Block({QUICK: 8}, {}, overlapping), Block({}, {})).threshold == 0.1


@pytest.mark.parametrize(
    ("stable", "canary", "blind"), [({SLOW: 9}, {SLOW: 9}, True), ({SLOW: 9}, {}, False), ({}, {SLOW: 9}, False)]
)
def test_a_bound_above_the_last_edge_compares_nothing_and_blinds_where_both_have_requests(
    stable: dict[int, int], canary: dict[int, int], blind: bool
) -> None:
    high = Block({QUICK: 9}, {}, Pair({(0.2, 0.4): 9}, {}, EDGES))
    seeing, tail = Block({QUICK: 9}, {QUICK: 9}), Pair({(0.2, 0.4): 1}, {(0.2, 0.4): 1}, EDGES)
    test = seen(high, seeing)
    before = (test.bound, list(test.logs))
    assert test.bound == pytest.approx(0.46) and not test.blind
    test.add(Block(stable, canary, tail))
    assert (len(test.blocks), test.logs) == (1, before[1])
    assert (test.bound, test.blind) == ((None, True) if blind else (before[0], False))
    test.add(seeing)
    assert (len(test.blocks), test.bound, test.blind) == (2, pytest.approx(0.46), False)


@pytest.mark.parametrize("block", [Block({SLOW: 9}, {}), Block({}, {SLOW: 9})])
def test_a_block_with_requests_of_one_revision_alone_compares_nothing(block: Block) -> None:
    test = seen(LEARNED, block)
    assert (test.blocks, test.bound, test.blind, test.logs) == ([], None, False, [0.0] * 8)
    assert test.total == BlockCounts(0, 0, 0, 0)


def test_hits_weigh_by_the_likelihood_of_their_split_and_blocks_add_up() -> None:
    test = seen(LEARNED, Block({QUICK: 17, SLOW: 3}, {QUICK: 4, SLOW: 6}))
    first = ratios(BlockCounts(20, 10, 3, 6))
    assert test.logs == pytest.approx(first)
    test.add(Block({QUICK: 6, SLOW: 4}, {QUICK: 12, SLOW: 1}))
    second = ratios(BlockCounts(10, 13, 4, 1))
    assert test.logs == pytest.approx([one + other for one, other in zip(first, second, strict=True)])
    assert test.total == BlockCounts(30, 23, 7, 7)


def test_no_block_adds_more_than_the_ceiling_but_may_take_more_away() -> None:
    worse, better = BlockCounts(20, 10, 3, 6), BlockCounts(20, 10, 9, 0)
    test = seen(LEARNED, Block({QUICK: 17, SLOW: 3}, {QUICK: 4, SLOW: 6}), test=made(ceiling=0.5))
    limited = [min(0.5, one) for one in ratios(worse)]
    assert test.logs == pytest.approx(limited) and max(ratios(worse)) > 0.5
    test.add(Block({QUICK: 11, SLOW: 9}, {QUICK: 10}))
    assert test.logs == pytest.approx([one + other for one, other in zip(limited, ratios(better), strict=True)])


def test_a_copy_goes_its_own_way() -> None:
    """The original learns as if there were no copy, and the copy as if it were the original."""
    blocks = [LEARNED, Block({QUICK: 60, SLOW: 30}, {QUICK: 10, SLOW: 20}), Block({SLOW: 99}, {SLOW: 9})]

    def state(test: PairedTest) -> tuple[object, ...]:
        return test.threshold, tuple(test.blocks), test.total, tuple(test.logs), test.odds, test.spread(), test.bound

    test = seen(*blocks[:2])
    before, copy = state(test), test.copied()
    assert state(copy) == before
    seen(*blocks, test=copy)
    assert state(test) == before
    ends = Block({QUICK: 1}, {QUICK: 1})
    assert state(seen(blocks[2], ends, test=test)) == state(seen(*blocks, ends))
    assert state(copy) != before


def mean(logs: Sequence[float]) -> float:
    return sum(math.exp(log) for log in logs) / len(logs)


WORSE = Block({QUICK: 17, SLOW: 3}, {QUICK: 4, SLOW: 6})
BETTER = Block({QUICK: 11, SLOW: 9}, {QUICK: 9, SLOW: 1})


def divided(logs: Sequence[float], spread: float) -> list[float]:
    """What is evidence against the canary, divided; what is evidence for it, whole."""
    return [log / spread if log > 0 else log for log in logs]


def test_without_requests_there_is_no_evidence() -> None:
    assert evidence([]) == evidence([made()]) == evidence([made(), seen(LEARNED)]) == 1.0


def test_the_evidence_is_the_mean_over_the_alternatives_divided_by_the_dispersion() -> None:
    test = seen(LEARNED, WORSE, WORSE, BETTER)
    assert min(test.logs) < 0 < max(test.logs) and test.spread() > 1
    assert evidence([test]) == pytest.approx(mean(divided(test.logs, test.spread())))


def test_evidence_for_the_canary_is_not_divided() -> None:
    test = seen(LEARNED, BETTER, BETTER, WORSE, BETTER)
    assert max(test.logs) < 0 and test.spread() > 1
    assert evidence([test]) == pytest.approx(mean(test.logs))


def test_strata_multiply_and_the_one_that_scatters_most_divides_all() -> None:
    one, other = seen(LEARNED, WORSE, WORSE), seen(LEARNED, BETTER, WORSE, WORSE, WORSE)
    logs = [mine + yours for mine, yours in zip(one.logs, other.logs, strict=True)]
    assert max(logs) > 0
    assert evidence([one, other]) == pytest.approx(mean(divided(logs, max(one.spread(), other.spread()))))
    assert one.spread() != other.spread()


def test_evidence_stays_a_number_whose_logarithm_is_one() -> None:
    worse = [seen(LEARNED, *([WORSE] * 900)), seen(LEARNED, *([WORSE] * 900))]
    assert math.log(evidence(worse)) == pytest.approx(MAX_EXPONENT)
    better = seen(LEARNED, *([Block({QUICK: 400, SLOW: 100}, {QUICK: 500})] * 200))
    assert math.log(evidence([better])) == pytest.approx(-MAX_EXPONENT)


def test_the_common_odds_weigh_blocks_by_their_size() -> None:
    """Three of 10 beside one of 30, and four of 20 beside two of 20, with a half on both sides."""
    blocks = [BlockCounts(30, 10, 1, 3.0), BlockCounts(20, 20, 2, 4.0)]
    expected = (3 * 30 / 40 + 4 * 20 / 40 + 0.5) / (1 * 10 / 40 + 2 * 20 / 40 + 0.5)
    assert common_odds(blocks) == pytest.approx(expected)
    assert common_odds([]) == 1.0
    test = seen(LEARNED, Block({QUICK: 29, SLOW: 1}, {QUICK: 7, SLOW: 3}), Block({1: 18, 500: 2}, {1: 16, 500: 4}))
    assert test.odds == pytest.approx(expected)


MORE, LESS = BlockCounts(20, 20, 0, 2.0), BlockCounts(20, 20, 2, 0.0)
# Two hits of 40, drawn without replacement: the share of each is a half, and one of the two is expected.
VARIANCE = 2 * 0.5 * 0.5 * 38 / 39


@pytest.mark.parametrize("length", [1, 4, 16, 64])
def test_slowness_that_lasts_is_measured_at_its_length(length: int) -> None:
    """Deviations of one, `length` blocks up and as many down: groups of so many blocks deviate by `length`, longer ones
    by nothing. Ten groups of dispersion two are assumed beforehand."""
    blocks = ([MORE] * length + [LESS] * length) * (64 // length)
    expected = (20 + 128 / VARIANCE) / (128 / length + 10)
    assert dispersion(blocks) == pytest.approx(expected)


def squared(rare: float, own: float, sizes: tuple[float, float], odds: float) -> float:
    """The squared deviation of a block by its variance: `own` of `rare` requests are the canary's."""
    stable, canary = sizes
    share, total = odds * canary / (stable + odds * canary), stable + canary
    return (own - rare * share) ** 2 / (rare * share * (1 - share) * (total - rare) / (total - 1))


def test_the_expected_split_follows_the_sizes_and_the_common_odds() -> None:
    """Up to half of a block's requests may be hits, and two requests are enough."""
    blocks = [BlockCounts(30, 10, 0, 9.0), BlockCounts(10, 20, 9, 6.0), BlockCounts(1, 1, 0, 1.0)]
    odds = common_odds(blocks)
    squares = squared(9, 9, (30, 10), odds) + squared(15, 6, (10, 20), odds) + squared(1, 1, (1, 1), odds)
    assert squares > 12 and odds > 1.05
    assert dispersion(blocks) == pytest.approx((20 + squares) / 13)


def test_where_most_requests_are_hits_the_others_are_split_by_the_inverse_odds() -> None:
    """The odds are inverted when hits and the others are exchanged."""
    blocks = [BlockCounts(30, 10, 0, 9.0), BlockCounts(20, 30, 19, 14.0)]
    odds = common_odds(blocks)
    squares = squared(9, 9, (30, 10), odds) + squared(17, 16, (20, 30), 1 / odds)
    assert squares > 12 and odds > 1.05
    assert dispersion(blocks) == pytest.approx((20 + squares) / 12)


def test_blocks_without_hits_or_of_one_request_scatter_nothing() -> None:
    few = [BlockCounts(1, 0.5, 1, 0.0), BlockCounts(0.5, 1, 0, 1.0)]
    quiet, blocks = BlockCounts(20, 20, 0, 0.0), [MORE, MORE, LESS, LESS]
    mixed = [quiet, MORE, *few, quiet, MORE, LESS, quiet, LESS]
    assert dispersion(mixed) == dispersion(blocks) == pytest.approx((20 + 4 / VARIANCE) / 14)
    assert dispersion([quiet] * 30) == dispersion(few) == dispersion([]) == 2.0


def test_a_block_in_which_all_requests_are_slow_scatters_nothing() -> None:
    blocks = [BlockCounts(20, 20, 1, 3.0)] * 40
    assert dispersion([*blocks, BlockCounts(20, 20, 20, 20.0)]) == pytest.approx(dispersion(blocks), rel=0.05)


def test_slowness_that_lasts_adds_up_over_blocks_of_few_hits_and_of_many() -> None:
    """Two hits of 40, or all but two: where the canary has one more than expected, the blocks deviate by one the same way."""
    more, less = BlockCounts(20, 20, 18, 20.0), BlockCounts(20, 20, 20, 18.0)
    blocks = [MORE, more, MORE, more, LESS, less, LESS, less] * 16
    assert dispersion(blocks) == pytest.approx((20 + 128 / VARIANCE) / (128 / 4 + 10))


def test_a_moment_in_which_all_are_slow_hides_no_regression() -> None:
    """A stall that slows every request of both revisions, once among 200 blocks of a canary with four times the hits."""
    block, stall = Block({QUICK: 19, SLOW: 1}, {QUICK: 16, SLOW: 4}), Block({SLOW: 20}, {SLOW: 20})
    blocks = [block] * 100
    without, stalled = seen(LEARNED, *blocks, *blocks), seen(LEARNED, *blocks, stall, *blocks)
    assert math.log(evidence([stalled])) > 0.8 * math.log(evidence([without])) > 20


def test_steady_blocks_are_no_less_evidence_than_independent_requests() -> None:
    steady = [BlockCounts(20, 20, 1, 1.0)] * 1000
    assert dispersion(steady) == 1.0 and dispersion(steady[:127]) == pytest.approx(20 / 11)


def test_the_dispersion_follows_each_block_and_is_one_without_any() -> None:
    test = made()
    assert test.spread() == 1.0
    for block in (LEARNED, WORSE, BETTER, WORSE):
        test.add(block)
        assert test.spread() == (dispersion(test.blocks) if test.blocks else 1.0)
