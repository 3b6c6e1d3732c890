"""Protects the split's exactness and stickiness that moves only whom it must."""

from __future__ import annotations

import math
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pagefleet_gateway.picking.split import Split, sticky_revision

PERCENT = st.integers(0, 100)


@given(PERCENT, st.integers(0, 2**32), st.integers(1, 700))
def test_the_split_is_exact_per_block_and_within_the_binomial_interval(share: int, seed: int, count: int) -> None:
    weights = (("a", 100 - share), ("b", share))
    split = Split(random.Random(seed))
    drawn = [split.draw(weights) for _ in range(count)]
    size = 100 // math.gcd(share, 100 - share)
    whole = count // size * size
    assert Counter(drawn[:whole])["b"] * 100 == whole * share
    p = share / 100
    assert abs(Counter(drawn)["b"] - count * p) <= max(2.576 * math.sqrt(count * p * (1 - p)), size * p * (1 - p) + 1)


@given(st.integers(0, 2**32))
def test_a_new_weight_is_in_force_at_the_next_draw(seed: int) -> None:
    split = Split(random.Random(seed))
    for _ in range(7):
        split.draw((("a", 50), ("b", 50)))
    assert {split.draw((("a", 100), ("b", 0))) for _ in range(50)} == {"a"}


@given(st.lists(st.text(), min_size=1, max_size=50), PERCENT, PERCENT)
def test_a_sticky_client_changes_sides_only_with_the_weight(keys: list[str], low: int, high: int) -> None:
    low, high = sorted((low, high))
    for key in keys:
        before = sticky_revision((("a", 100 - low), ("b", low)), key)
        after = sticky_revision((("b", high), ("a", 100 - high)), key)
        assert before == after or (before, after) == ("a", "b")


def test_sticky_clients_share_by_weight() -> None:
    share = Counter(sticky_revision((("a", 90), ("b", 10)), str(key)) for key in range(10_000))["b"] / 10_000
    assert abs(share - 0.1) <= 2.576 * math.sqrt(0.1 * 0.9 / 10_000)


def test_the_order_within_a_block_is_not_foreseeable() -> None:
    weights = (("a", 1), ("b", 1))
    assert {Split(random.Random(seed)).draw(weights) for seed in range(20)} == {"a", "b"}
