"""Protects the latency sketch: bucket numbers, their ends, and quantiles within 2 %. Gateway and operator share the buckets."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_contract.sketch import (
    SMALLEST,
    add_onto,
    beyond,
    bucket_at,
    bucket_of,
    merged,
    quantile,
    take_off,
    upper,
)

# From the first bucket's edge to eleven days: what the buckets are made for.
SECONDS = st.floats(SMALLEST, 1e6)


@given(SECONDS)
def test_a_value_lies_in_its_bucket(seconds: float) -> None:
    bucket = bucket_of(seconds)
    assert seconds <= upper(bucket) <= seconds * 1.02 * (1 + 1e-9)


@given(st.integers(0, 1163))
def test_a_buckets_upper_edge_belongs_to_it(bucket: int) -> None:
    assert bucket_of(upper(bucket)) == bucket
    assert bucket_of(math.nextafter(upper(bucket), math.inf)) == min(bucket + 1, 1163)


@given(st.lists(SECONDS, min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_quantile_is_within_two_percent(values: list[float], share: float) -> None:
    exact = sorted(values)[math.ceil(share * len(values)) - 1]
    read = quantile(Counter(map(bucket_of, values)), share)
    assert exact <= read <= exact * 1.02 * (1 + 1e-9)


HISTOGRAMS = st.dictionaries(st.integers(0, 1163), st.integers(1, 5), max_size=20)


@given(HISTOGRAMS, st.integers(1, 200))
def test_the_bucket_at_a_rank_is_that_of_the_sorted_counts(histogram: dict[int, int], position: int) -> None:
    values = sorted(Counter(histogram).elements())
    assert bucket_at(histogram, position) == (values[position - 1] if position <= len(values) else None)


@given(HISTOGRAMS, st.floats(-1, 1200))
def test_counts_beyond_a_limit_exclude_the_limit_itself(histogram: dict[int, int], limit: float) -> None:
    assert beyond(histogram, limit) == sum(1 for bucket in Counter(histogram).elements() if bucket > limit)


@given(HISTOGRAMS, HISTOGRAMS)
def test_adding_onto_sums_changes_only_the_sums(sums: dict[int, int], histogram: dict[int, int]) -> None:
    expected, given_counts = Counter(sums) + Counter(histogram), dict(histogram)
    assert merged([sums, histogram]) == expected
    add_onto(sums, histogram)
    assert sums == expected
    assert histogram == given_counts


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, 0), (1e-4, 0), (1e-3, 117), (0.1, 349), (1.0, 466), (60.0, 672), (math.inf, 1163)]
)
def test_bucket_numbers_on_the_wire_stay(seconds: float, bucket: int) -> None:
    assert bucket_of(seconds) == bucket


@pytest.mark.parametrize("seconds", [-1.0, math.nan])
def test_no_latency_is_negative_or_not_a_number(seconds: float) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        bucket_of(seconds)


@given(st.lists(st.dictionaries(st.integers(0, 20), st.integers(0, 5), max_size=5), max_size=6), st.data())
def test_what_was_added_can_be_taken_off_in_any_order(histograms: list[dict[int, int]], data: st.DataObject) -> None:
    """Histograms may hold buckets without counts."""
    sums: dict[int, int] = {}
    for histogram in histograms:
        add_onto(sums, histogram)
    for histogram in data.draw(st.permutations(histograms)):
        take_off(sums, histogram)
    assert sums == {}
