"""Protects how the evidence against a canary is added up: which of its requests count at which thresholds and from when on, what the
stable revision's hits of the last seconds excuse, and how the calibration by single pods divides it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.load_slices import KNOWN, TIMES, arrivals, piece

from pagefleet_contract.strata import FREE_STRATA
from pagefleet_operator.domain.analysis.adjusted.accumulated import Accumulated, AdjustedScope, Earlier
from pagefleet_operator.domain.analysis.adjusted.alike import Alikeness
from pagefleet_operator.domain.analysis.adjusted.alternatives import SHARES, stakes
from pagefleet_operator.domain.analysis.adjusted.excursions import MIN_SCALES, NEAR, Excursions
from pagefleet_operator.domain.analysis.adjusted.onsets import OnsetMixture, OnsetPrior
from pagefleet_operator.domain.analysis.adjusted.severe import severe
from pagefleet_operator.domain.analysis.adjusted.surges import surged
from pagefleet_operator.domain.analysis.adjusted.suspects import Suspects
from pagefleet_operator.domain.status.observation import Slice

UNKNOWN = FREE_STRATA[7]
HITS = {300: 1}  # above all thresholds
QUANTILES, MULTIPLES = [0.5, 0.25, 0.1, 0.05, 0.01], [4 / 202, 2 / 202, 2 / 202, 2 / 202]  # shares of hits
ASSUMED = [0.10, 0.05, 0.015, 2 / 202]  # at the multiples, in strata that are not known
NONE = [0.0] * 4
SCOPE = AdjustedScope("s", "c", begin=30.0, warm_up=0, increase=0.15)


def learned(scope: AdjustedScope = SCOPE, earlier: Earlier | None = None) -> Accumulated:
    """Sums that know 200 requests of the stable; the thresholds are made at second 30."""
    sums = Accumulated(scope, earlier)
    sums.add(0.0, [piece("s", 0.0, TIMES)])
    return sums


def gained(sums: Accumulated, start: float, pieces: list[Slice], pods: int = 1) -> list[float]:
    """The logarithms of a slice's ratios times the smallest scales, by alternative. The sums take the slice over."""
    alone = sums.evidence.after([0.0] * 37, SHARES, OnsetPrior(1800.0))
    sums.add(start, pieces, pods)
    found = [after - before for after, before in zip(sums.evidence.logs, alone.logs, strict=True)]
    return [own * scale for own, scale in zip(found, MIN_SCALES, strict=True)]


def ups(shares: Sequence[float]) -> list[float]:
    """What one hit earns against each of the shares."""
    return [up for share in shares for up in stakes(share)[0]]


def downs(shares: Sequence[float]) -> list[float]:
    """What one miss costs against each of the shares."""
    return [down for share in shares for down in stakes(share)[1]]


def test_a_hit_counts_against_the_share_of_each_threshold_of_its_stratum() -> None:
    """The 99 % quantile of the stratum is not known."""
    sums = learned()
    expected = ups(QUANTILES[:4]) + NONE + ups(MULTIPLES) + [severe(MULTIPLES).ratio([(1, 1)] * 4)]
    assert gained(sums, 30.0, [piece("c", 30.0, HITS)]) == pytest.approx(expected)
    assert sums.hits == [(1, 1)] * 4 + [(0, 0)] + [(1, 1)] * 4
    misses = downs(QUANTILES[:2])
    assert gained(sums, 32.0, [piece("c", 32.0, {50: 1})])[:8] == pytest.approx(misses)
    sums.add(34.0, [piece("c", 34.0, {50: 1})])
    assert sums.hits[0] == (3, 1)


def test_in_strata_that_are_not_known_lower_quantiles_are_inherited_and_multiples_have_assumed_shares() -> None:
    sums = learned()
    expected = ups(QUANTILES[:2]) + NONE * 3 + ups(ASSUMED) + [severe(ASSUMED).ratio([(1, 1)] * 4)]
    assert gained(sums, 30.0, [piece("c", 30.0, HITS, stratum=UNKNOWN)]) == pytest.approx(expected)
    misses = downs(ASSUMED)
    found = gained(sums, 32.0, [piece("c", 32.0, {1: 1}, stratum=UNKNOWN)])
    assert found[20:36] == pytest.approx(misses) and found[36] == pytest.approx(math.log(0.25))


def test_a_request_that_waits_in_a_stratum_that_is_not_known_counts_at_the_multiple_that_it_has_passed() -> None:
    found = gained(learned(), 30.0, [piece("c", 30.0, {}, {120: 1}, UNKNOWN)])
    assert found[20:36] == pytest.approx(ups(ASSUMED[:1]) + NONE * 3)
    assert found[36] == pytest.approx(severe(ASSUMED).ratio([(1, 1), (0, 0), (0, 0), (0, 0)]))


def test_requests_count_from_the_begin_on() -> None:
    sums = learned(replace(SCOPE, begin=31.0))
    sums.add(30.0, [piece("c", 30.0, HITS)])
    assert sums.evidence.blocks == 0 and sums.canary == {} and sums.seconds == ({}, {})
    sums.add(31.0, [piece("s", 31.0, {5: 2}), piece("c", 31.0, HITS)])
    assert sums.evidence.blocks == 1 and sums.until == 31.0
    assert sums.canary == {KNOWN: HITS} and sums.seconds == ({6: 2}, {301: 1})
    sums.add(31.0, [piece("c", 31.0, HITS)])
    assert sums.evidence.blocks == 1, "a slice that is in the sums already"


@pytest.mark.parametrize("begin", [10.0, 50.0])
def test_a_restarted_operator_goes_on_after_the_slices_that_are_stored(begin: float) -> None:
    evidence, suspects = OnsetMixture((-1.0,) * 37, 9), Suspects({KNOWN: {5: 1}}, {KNOWN: {9: 2}})
    earlier = Earlier(40.0, evidence, {KNOWN: {5: 3}}, suspects)
    sums = learned(replace(SCOPE, begin=begin, warm_up=5), earlier)
    assert (sums.until, sums.evidence, sums.suspects) == (max(begin - 1, 40.0), evidence, suspects)
    sums.add(40.0, [piece("c", 40.0, {}, HITS)])
    assert sums.evidence == evidence
    assert gained(sums, 50.0, [piece("c", 50.0, {}, HITS)]) == pytest.approx([0.0] * 37), (
        "it is warm, and the hit is old"
    )
    sums.add(52.0, [piece("c", 52.0, {5: 1})])
    assert sums.canary == {KNOWN: {5: 4}} and earlier.canary == {KNOWN: {5: 3}}


def test_before_a_canary_is_warm_only_the_far_multiples_count_and_what_still_waits_then_counts_anew() -> None:
    sums = learned(replace(SCOPE, warm_up=5))
    far = NONE * 7 + ups(MULTIPLES[2:]) + [severe(MULTIPLES[2:]).ratio([(1, 1)] * 2)]
    both = [up + down for share in MULTIPLES[2:] for up, down in zip(*stakes(share), strict=True)]
    bet = severe(MULTIPLES[2:]).ratio([(2, 1)] * 2)
    found = gained(sums, 30.0, [arrivals("c", 30.0, 3), piece("c", 30.0, {140: 1}, HITS)])
    assert found == pytest.approx(NONE * 7 + both + [bet])
    # One that a gateway no longer reports, waiting or ended, takes nothing back.
    assert gained(sums.copied(), 32.0, [piece("c", 32.0, {})]) == pytest.approx([0.0] * 37)
    assert gained(sums, 32.0, [arrivals("c", 32.0, 2), piece("c", 32.0, {}, {300: 2})]) == pytest.approx(far)
    assert sums.canary == {} == sums.seconds[1]
    # Two wait since before it was warm. They have counted at the far multiples, and have not at the others.
    near = [2 * up for up in ups(QUANTILES[:4]) + NONE + ups(MULTIPLES[:2])]
    anew = severe(MULTIPLES).ratio([(2, 2)] * 4) - severe(MULTIPLES[2:]).ratio([(2, 2)] * 2)
    assert gained(sums, 34.0, [piece("c", 34.0, {}, {300: 2})]) == pytest.approx(near + NONE * 2 + [anew])
    assert gained(sums, 36.0, [piece("c", 36.0, {}, {300: 2})]) == pytest.approx([0.0] * 37)
    sums.add(38.0, [piece("c", 38.0, {5: 1})])
    assert sums.canary == {KNOWN: {5: 1}}


def test_only_requests_sent_to_the_canary_make_it_warm() -> None:
    sums = learned(replace(SCOPE, warm_up=5))
    others = [replace(arrivals("c", 30.0, 9), revision="s"), replace(piece("c", 30.0, {}), started=9)]
    sums.add(30.0, [*others, arrivals("c", 30.0, 4)])
    assert gained(sums, 32.0, [arrivals("c", 32.0, 1), piece("c", 32.0, HITS)])[:28] == pytest.approx(NONE * 7)
    assert gained(sums, 34.0, [piece("c", 34.0, HITS)])[:16] == pytest.approx(ups(QUANTILES[:4]))


@pytest.mark.parametrize(("later", "excused"), [(0.0, True), (8.0, True), (10.0, False)])
def test_hits_of_the_stable_revision_excuse_the_canary_s_of_the_same_ten_seconds(later: float, excused: bool) -> None:
    """Of 40 requests of the stable 20 are far slower than usual."""
    sums, slow = learned(), piece("s", 30.0, {1: 20, 300: 20})
    pieces = [piece("c", 30.0 + later, HITS), piece("c", 30.0 + later, HITS, stratum=UNKNOWN)]
    if later:
        sums.add(30.0, [slow])
        found = gained(sums, 30.0 + later, pieces)
    else:
        found = gained(sums, 30.0, [slow, *pieces])
    counts = (40, 20) if excused else (0, 0)
    known = [surged(share, *counts) for share in MULTIPLES]
    elsewhere = [surged(share, *counts) for share in ASSUMED]
    expected = [one + other for one, other in zip(ups(known), ups(elsewhere), strict=True)]
    assert found[20:36] == pytest.approx(expected)
    bet = severe(known).ratio([(1, 1)] * 4) + severe(elsewhere).ratio([(1, 1)] * 4)
    assert found[36] == pytest.approx(bet)


def test_the_stable_revision_s_hits_are_those_of_its_own_thresholds() -> None:
    """The median is estimated as bucket 60, and the canary's threshold is 67."""
    sums = learned()
    sums.add(30.0, [piece("s", 30.0, {63: 40})])
    found = gained(sums, 32.0, [piece("c", 32.0, HITS)])
    assert found[:4] == pytest.approx(ups([surged(0.5, 40, 40)])) != pytest.approx(ups([0.5]))


def test_hits_of_the_stable_revision_that_are_too_old_leave_those_that_are_not() -> None:
    sums = learned()
    sums.add(30.0, [piece("s", 30.0, {1: 20, 300: 20})])
    sums.add(34.0, [piece("s", 34.0, {1: 30, 300: 10})])
    found = gained(sums, 40.0, [piece("c", 40.0, HITS)])
    assert found[20:36] == pytest.approx(ups([surged(share, 40, 10) for share in MULTIPLES]))


def test_thresholds_are_made_anew_every_thirty_seconds_and_forget_what_was_counted_at_the_old_ones() -> None:
    sums = learned()
    sums.add(29.0, [piece("s", 29.0, {500: 800})])
    assert sums.thresholds == ()
    sums.add(30.0, [piece("s", 30.0, {500: 1000})])
    before = sums.thresholds
    sums.add(59.0, [piece("s", 59.0, {500: 40})])
    assert sums.thresholds is before and before[0].stable == {KNOWN: 500}
    sums.add(60.0, [piece("s", 60.0, {1: 4000})])
    assert sums.thresholds != before
    assert sums._totals[0] == 4000 and len(sums._recent) == 1
    sums.add(90.0, [])
    assert sums.thresholds[0].stable == {KNOWN: 1}


def alike(sums: Accumulated) -> Alikeness:
    """Three pods that are quick together for ten seconds and slow for ten, and what they show."""
    expected = Alikeness()
    for number in range(30):
        start, slow = 30.0 + 2 * number, number // 5 % 2
        pods = {f"p{pod}": {(85 if slow else 1): 4} for pod in range(3)}
        sums.add(start, [piece("s", start, {1: 12}, pods=pods)])
        for pod in pods:
            expected.add(start, pod, 4, 4 * slow)
    return expected


def test_a_canary_of_several_pods_is_judged_as_cautiously_as_the_stable_s_pods_are_alike() -> None:
    """The pods are alike by the hits of the 75 % quantile, whose bucket is 82. The far multiples are as for a single pod."""
    sums = learned(replace(SCOPE, begin=100.0))
    effect = alike(sums).design_effect(3)
    assert effect > 1.3
    slow = [piece("c", 100.0, HITS)]
    first, unsaid = sums.copied(), sums.copied()
    one, three = gained(first, 100.0, slow, pods=1), gained(sums.copied(), 100.0, slow, pods=3)
    unsaid.add(100.0, slow)
    assert unsaid.evidence == first.evidence
    assert gained(sums.copied(), 100.0, slow, pods=0) == one, "a canary without a ready pod"
    for place, (alone, together) in enumerate(zip(one, three, strict=True)):
        assert together * (effect if place in NEAR else 1.0) == pytest.approx(alone, abs=1e-9)


def test_single_pods_of_the_stable_revision_calibrate_the_evidence() -> None:
    """One pod has four hits, and the picker avoids it. Another one has hits of the lower quantiles. The third one's requests are no
    hits, and so begin no excursion."""
    sums, expected = learned(), Excursions()
    pods = {"slow": {300: 4}, "middling": {90: 20}, "quick": {1: 40}}
    sums.add(30.0, [piece("s", 30.0, {}, pods=pods), piece("c", 30.0, {}, pods={"other": {300: 9}})])
    weight = (64 / 3 + 5) / (4 + 5)
    ratios = [weight * 4 * up for up in ups(QUANTILES + MULTIPLES)] + [weight * severe(MULTIPLES).ratio([(4, 4)] * 4)]
    expected.add(30.0, "slow", [(0, ratios)])
    less = [*ups(QUANTILES[:2]), *downs(QUANTILES[2:] + MULTIPLES)]
    less.append(math.log(0.25))
    expected.add(30.0, "middling", [(0, [(64 / 3 + 5) / (20 + 5) * 20 * own for own in less])])
    expected.under_way(30.0, "quick")
    assert sums.excursions.pods == {"slow", "middling", "quick"}
    assert sums.excursions.scales() == pytest.approx(expected.scales()) != pytest.approx(MIN_SCALES)
    # Without a hit the excursion under way shrinks.
    sums.add(32.0, [piece("s", 32.0, {}, pods={"slow": {1: 90}, "quick": {1: 90}})])
    misses = [90 * down for down in downs(QUANTILES + MULTIPLES)] + [90 * math.log(0.25)]
    expected.add(32.0, "slow", [(0, misses)])
    assert sums.excursions.scales() == pytest.approx(expected.scales())
    sums.add(60.0, [piece("c", 60.0, {})])
    found = gained(sums, 62.0, [piece("c", 62.0, HITS)])
    one = severe(MULTIPLES).ratio([(1, 1)] * 4)
    assert found[36] == pytest.approx(one * 1.6 / expected.scales()[36]), "scales are renewed with the thresholds"


def test_a_pod_s_requests_above_the_first_multiple_alone_are_hits_of_the_bet_on_all_of_them() -> None:
    sums, expected = learned(), Excursions()
    sums.add(30.0, [piece("s", 30.0, {}, pods={"late": {120: 4}})])
    ratios = [4 * own for own in ups(QUANTILES + MULTIPLES[:1]) + downs(MULTIPLES[1:])]
    ratios.append(severe(MULTIPLES).ratio([(4, 4), (4, 0), (4, 0), (4, 0)]))
    expected.add(30.0, "late", [(0, ratios)])
    assert ratios[-1] > 0
    assert sums.excursions._open["late"] == pytest.approx(expected._open["late"])


def test_pods_are_alike_by_their_hits_and_a_pod_without_one_has_none() -> None:
    sums, expected = learned(), Alikeness()
    for number in range(30):
        start, slow = 30.0 + 2 * number, {f"p{pod}": 2 * ((number // 5 + pod) % 3) for pod in range(2)}
        pods = {pod: {85: hits, 1: 4 - hits} if hits else {1: 4} for pod, hits in slow.items()}
        sums.add(start, [piece("s", start, {1: 8}, pods=pods)])
        for pod, hits in slow.items():
            expected.add(start, pod, 4, hits)
    assert sums._alikeness._single == expected._single > 0
    assert sums._alikeness._together == expected._together


def test_a_pod_that_is_gone_does_not_lower_the_traffic_that_the_others_count_by() -> None:
    sums, expected = learned(), Excursions()
    sums.add(30.0, [piece("s", 30.0, {}, pods={"gone": {1: 90}})])
    sums.add(92.0, [])
    sums.add(122.0, [piece("s", 122.0, {}, pods={"slow": {300: 4}, "quick": {1: 40}})])
    weight = (22 + 5) / (4 + 5)
    ratios = [weight * 4 * up for up in ups(QUANTILES + MULTIPLES)] + [weight * severe(MULTIPLES).ratio([(4, 4)] * 4)]
    expected.add(122.0, "slow", [(0, ratios)])
    assert sums.excursions.scales() == pytest.approx(expected.scales())


def test_requests_are_suspect_while_the_evidence_is_above_its_start() -> None:
    sums = learned()
    sums.add(30.0, [piece("c", 30.0, {300: 9})])
    assert sums.evidence.log > 0 and sums.suspects == Suspects({KNOWN: {300: 9}}, {})


def test_the_likeliest_threshold_has_the_most_evidence_and_the_bet_on_all_multiples_is_named_by_the_first() -> None:
    sums = learned()
    logs = [-5.0] * 37
    for place, expected in ((15, 3), (16, 4), (35, 8), (36, 5)):
        logs[place] = place
        sums.evidence = OnsetMixture(tuple(logs))
        assert sums.likeliest() == expected


def test_waiting_requests_are_the_canary_s_of_all_strata() -> None:
    sums = learned()
    sums.add(30.0, [replace(piece("s", 30.0, {}, {8: 8}), instance="i"), piece("c", 30.0, {}, {9: 1})])
    sums.add(32.0, [replace(piece("c", 32.0, {}, {9: 2, 7: 1}, UNKNOWN), instance="h")])
    assert sums.waiting() == {9: 3, 7: 1}


def test_a_copy_s_sums_are_its_own() -> None:
    sums = learned()
    pods = {"a": {300: 2}, "b": {1: 9}}
    sums.add(30.0, [piece("s", 30.0, {1: 9}, {8: 8}, pods=pods), piece("c", 30.0, {300: 9}, {300: 1})])
    copy, twin = sums.copied(), sums.copied()

    def state(own: Accumulated) -> str:
        totals = own._totals, list(own._recent), own.hits, own.canary, own.seconds, own.suspects
        calibration = own.excursions.scales(), own.reference.strata, own._traffic.weight("a"), own._alikeness._pods
        return repr((totals, calibration, own._waiting[0].total(), own.waiting(), own.evidence, own.until))

    before = state(sums)
    assert state(copy) == before
    for start in (32.0, 60.0):
        copy.add(start, [piece("s", start, {300: 9}, pods=pods), piece("c", start, {300: 9}, {300: 4})])
    assert state(sums) == before == state(twin) != state(copy)
