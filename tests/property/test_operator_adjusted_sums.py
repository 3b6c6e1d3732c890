"""Protects the sums of the verdict at equal load: with a memo, and however late a slow gateway answers within the time that its
slices may change, the verdict is the one without a memo. The short cuts of the sums count what the plain rules count."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_operator.domain.analysis import guard
from pagefleet_operator.domain.analysis.adjusted import excursions
from pagefleet_operator.domain.analysis.adjusted.accumulated import Accumulated, AdjustedScope
from pagefleet_operator.domain.analysis.adjusted.alternatives import BET_OF, COUNT, THRESHOLDS
from pagefleet_operator.domain.analysis.adjusted.memory import CHECKPOINT_SECONDS, SETTLED_SECONDS, accumulate
from pagefleet_operator.domain.analysis.adjusted.onsets import FLOOR, OnsetMixture, OnsetPrior
from pagefleet_operator.domain.analysis.adjusted.waiting import Side
from pagefleet_operator.domain.analysis.guard import Comparison
from pagefleet_operator.domain.spec.rollout import Guard, LatencyGuard
from pagefleet_operator.domain.status.observation import LoadCounts, Observation, Slice
from pagefleet_operator.domain.status.status import Status

GUARD = Guard((LatencyGuard("ttft", 0.95, 0.15, 0.99, 20),), None, 3, False, 600.0)
SECONDS, LOADS, LEARNED = 2.0, ("0-180", "181-511 queued"), 40
HISTOGRAMS = st.dictionaries(st.integers(0, 40), st.integers(0, 5), max_size=6)
STRATA = st.dictionaries(st.sampled_from("abc"), HISTOGRAMS, max_size=3)


def moment(source: random.Random, index: int, worse: float, instance: str = "g") -> list[Slice]:
    """What one gateway measured in two seconds."""

    def times(factor: float) -> dict[int, int]:
        return {round(460 + source.gauss(0, 12) + 50 * math.log(factor)): source.randint(1, 3) for _ in range(3)}

    slices, start = [], index * SECONDS
    for revision, factor in (("s", 1.0), ("c", worse)):
        if revision == "s" or index >= LEARNED:
            load = {name: LoadCounts(times(factor), times(1.0), ttft=times(factor)) for name in LOADS}
            pods = {f"p{number}": times(source.choice([1.0, 1.0, 3.0])) for number in range(3 * (revision == "s"))}
            slices.append(Slice(instance, start, SECONDS, revision, "", 0, 0, load=load, pods=pods))
            slices.append(Slice(instance, start, SECONDS, revision, "s", 3, 0, started=3))
    return slices


@settings(max_examples=30)
@given(
    st.integers(0, 2**32),
    st.lists(st.sampled_from(["more", "more", "nothing", "late", "later"]), max_size=25),
    st.sampled_from([1.0, 1.3, 3.0]),
)
def test_the_verdict_is_the_one_without_a_memo(seed: int, changes: list[str], worse: float) -> None:
    source, memo = random.Random(seed), dict[str, object]()
    pieces, ends = [piece for index in range(LEARNED + 5) for piece in moment(source, index, worse)], LEARNED + 5
    for number, change in enumerate(changes):
        if change == "more":
            pieces, ends = [*pieces, *moment(source, ends, worse)], ends + 1
        elif change in ("late", "later"):
            back = ends - (2 if change == "late" else round(SETTLED_SECONDS / SECONDS))
            pieces = sorted([*pieces, *moment(source, back, worse, f"h{number}")], key=lambda piece: piece.start)
        question = Comparison("s", "c", since=LEARNED * SECONDS, now=ends * SECONDS)
        asked = Observation("ns", "chat", "uid", 1, {}, Status(), slices=tuple(pieces), memo=memo)
        assert guard.assess(asked, GUARD, question) == guard.assess(replace(asked, memo={}), GUARD, question)


def test_a_slice_that_comes_too_late_changes_nothing() -> None:
    source, memo, scope = random.Random(1), dict[str, object](), AdjustedScope("s", "c", LEARNED * SECONDS, 3, 0.15)
    pieces = [piece for index in range(LEARNED + 30) for piece in moment(source, index, 1.0)]
    before, record = accumulate(memo, scope, pieces, ())
    late = sorted([*pieces, *moment(source, LEARNED + 5, 3.0, "h")], key=lambda piece: piece.start)
    after, same = accumulate(memo, scope, late, ())
    assert (after.evidence, after.canary, same) == (before.evidence, before.canary, record)


@given(STRATA, STRATA, STRATA, STRATA, st.dictionaries(st.sampled_from("abcd"), st.integers(-1, 45)))
def test_a_request_counts_in_the_slice_in_which_its_age_passes_the_bucket(
    measured: dict[str, dict[int, int]],
    unmeasured: dict[str, dict[int, int]],
    begin: dict[str, dict[int, int]],
    end: dict[str, dict[int, int]],
    buckets: dict[str, int],
) -> None:
    def above(strata: dict[str, dict[int, int]], name: str) -> int:
        return sum(count for bucket, count in strata.get(name, {}).items() if bucket > buckets[name])

    requests = hits = 0
    for name in buckets:
        slow = above(measured, name)
        passed = max(0, slow + above(unmeasured, name) + above(end, name) - above(begin, name))
        requests += sum(measured.get(name, {}).values()) - slow + passed
        hits += passed
    assert Side(measured, unmeasured, begin, end).decided(buckets) == (requests, hits)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2**32)), max_size=60))
def test_excursions_are_those_of_cumulative_sums_place_by_place(slices: list[tuple[int, int]]) -> None:
    found, sums, peaks, heights = excursions.Excursions(), [0.0] * COUNT, [0.0] * COUNT, [0.0] * COUNT
    for start, (hits, seed) in enumerate(slices):
        source = random.Random(seed)
        ratios = [source.choice([0.0, hits, hits * source.uniform(0, 3)]) - source.uniform(0, 2) for _ in range(COUNT)]
        found.add(float(start), "p", [(0, ratios)])
        for place, ratio in enumerate(ratios):
            sums[place] = max(0.0, sums[place] + ratio)
            peaks[place] = max(peaks[place], sums[place])
            if not sums[place]:
                heights[place] += max(0.0, peaks[place] - excursions.LEVEL)
                peaks[place] = 0.0
    copy = found.copied()
    under_way, highest = copy._open.get("p", {}), copy._peaks.get("p", {})
    assert ([under_way.get(place, 0.0) for place in range(COUNT)], under_way.keys()) == (sums, highest.keys())
    assert [highest.get(place, 0.0) for place in range(COUNT)] == peaks
    assert found._height == heights


@given(st.lists(st.tuples(st.integers(0, 4), st.sets(st.integers(0, THRESHOLDS)), st.floats(1, 4)), max_size=40))
def test_requests_that_are_no_hits_lower_the_excursions_under_way_as_their_ratios_do(
    slices: list[tuple[int, set[int], float]],
) -> None:
    """`fall` for the bets without a hit, and `add` for the others, give what `add` gives for all of them."""
    apart, together, misses = (
        excursions.Excursions(),
        excursions.Excursions(),
        [-0.1 - place / 50 for place in range(COUNT)],
    )
    for start, (requests, hit, weight) in enumerate(slices):
        rises = [3.0 + place / 10 for place in range(COUNT)]
        runs = [(place, (rises[place],)) for place in range(COUNT) if BET_OF[place] in hit]
        apart.under_way(float(start), "p")
        apart.fall("p", misses, requests, weight, hit)
        apart.add(float(start), "p", runs, weight)
        every = [rises[place] if BET_OF[place] in hit else requests * misses[place] for place in range(COUNT)]
        together.add(float(start), "p", [(0, every)], weight)
    assert (apart._open, apart._peaks) == (together._open, together._peaks)
    assert (apart._count, apart._height, apart.scales()) == (together._count, together._height, together.scales())


@given(st.lists(st.floats(FLOOR, 300), min_size=3, max_size=3), st.lists(st.floats(-50, 50), min_size=3, max_size=3))
def test_a_block_adds_its_onset_before_it_counts(logs: list[float], ratios: list[float]) -> None:
    shares, prior = (0.2, 0.3, 0.5), OnsetPrior(500.0)
    after = OnsetMixture(tuple(logs), 7).after(ratios, shares, prior)
    for log, before, ratio, share in zip(after.logs, logs, ratios, shares, strict=True):
        onset = math.log(prior.weight(7) * share)
        high = max(before, onset)
        plain = high + math.log(math.exp(before - high) + math.exp(onset - high)) + ratio
        assert math.isclose(log, max(FLOOR, plain), rel_tol=1e-12, abs_tol=1e-12)


def test_a_decision_adds_up_each_slice_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work, not time: also the first decision, and no more than some seconds again when a gateway answers late."""
    added = list[float]()
    add = Accumulated.add
    monkeypatch.setattr(Accumulated, "add", lambda sums, start, *rest: (added.append(start), add(sums, start, *rest)))
    source, memo, scope = random.Random(1), dict[str, object](), AdjustedScope("s", "c", LEARNED * SECONDS, 3, 0.15)
    pieces = [piece for index in range(LEARNED + 30) for piece in moment(source, index, 1.0)]
    accumulate(memo, scope, pieces, ())
    assert len(added) == LEARNED + 30
    for index in range(LEARNED + 30, LEARNED + 60):
        added.clear()
        pieces = [*pieces, *moment(source, index, 1.0)]
        accumulate(memo, scope, pieces, ())
        assert added == [index * SECONDS]
    added.clear()
    pieces = sorted([*pieces, *moment(source, LEARNED + 57, 1.0, "h")], key=lambda piece: piece.start)
    accumulate(memo, scope, pieces, ())
    assert len(added) <= 3 + CHECKPOINT_SECONDS / SECONDS
