"""Protects the verdict on load-adjusted times to first token: a worse canary is convicted after few requests whenever it
becomes worse, and while its clients still wait. What befalls stable pods as well convicts nobody. A canary passes only when
its ratio's interval lies below what is accepted. An operator that restarts continues with the stored evidence. PAGEFLEET_SEEDS says
how many rollouts (8 in the night)."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from pagefleet_contract.sketch import bucket_of
from pagefleet_operator.domain.analysis import guard
from pagefleet_operator.domain.analysis.adjusted import memory
from pagefleet_operator.domain.analysis.adjusted.forecast import forecast
from pagefleet_operator.domain.analysis.adjusted.ratio import ratio, requests_needed
from pagefleet_operator.domain.analysis.adjusted.reference import FAR, QUANTILES, Reference
from pagefleet_operator.domain.analysis.guard import Comparison
from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict
from pagefleet_operator.domain.spec.rollout import Guard, LatencyGuard
from pagefleet_operator.domain.status.observation import LoadCounts, Observation, Slice
from pagefleet_operator.domain.status.status import EvidenceRecord, Status

STABLE, CANARY, STRATUM = "s", "c", "512-1447"
ENTRY = LatencyGuard("ttft", 0.95, 0.15, 0.99, 50)
GUARD = Guard((ENTRY,), None, 5, False, 600.0)
LEARNED = 600.0  # seconds of the stable revision alone
SEEDS = int(os.environ.get("PAGEFLEET_SEEDS", "1"))
Factor = Callable[[float], float]


def usual(_: float) -> float:
    return 1.0


class World:
    """Slices of two seconds: nine stable requests a second on eight pods, one on the canary, alike but for the factors.

    `stable` is the factor of each stable pod by the time and the pod's number, `canary` that of the canary. A factor of
    infinity is a request that never gets an answer.
    """

    def __init__(
        self,
        seed: int,
        canary: Factor = usual,
        stable: Callable[[float, int], float] | None = None,
        *,
        sigma: float = 0.3,
    ) -> None:
        self._sigma = sigma
        self._random, self._canary, self._stable = random.Random(seed), canary, stable or (lambda *_: 1.0)
        self._hanging: list[float] = []
        self.requests = 0

    def slices(self, until: float) -> Iterator[list[Slice]]:
        for start in range(round(-LEARNED), round(until), 2):
            yield self._slice(float(start))

    def _slice(self, start: float) -> list[Slice]:
        pods = {f"p{number}": dict[int, int]() for number in range(8)}
        for index in range(18):
            pod = index % 8
            self._count(pods[f"p{pod}"], self._stable(start, pod))
        pooled: dict[int, int] = {}
        for own in pods.values():
            for bucket, count in own.items():
                pooled[bucket] = pooled.get(bucket, 0) + count
        stable = Slice("g", start, 2.0, STABLE, "", 0, 0, load={STRATUM: LoadCounts(pooled, ttft=pooled)}, pods=pods)
        if start < 0:
            return [stable]
        measured: dict[int, int] = {}
        for _ in range(2):
            self.requests += 1
            if math.isinf(self._canary(start)):
                self._hanging.append(start)
            else:
                self._count(measured, self._canary(start))
        waiting = dict[int, int]()
        for since in self._hanging:
            bucket = bucket_of((start + 2 - since) / 0.2)
            waiting[bucket] = waiting.get(bucket, 0) + 1
        load = {STRATUM: LoadCounts(measured, waiting, ttft=measured)}
        arrivals = Slice("g", start, 2.0, CANARY, STRATUM, 2, 0, started=2)
        return [stable, arrivals, Slice("g", start, 2.0, CANARY, "", 0, 0, load=load)]

    def _count(self, histogram: dict[int, int], factor: float) -> None:
        bucket = bucket_of(factor * self._random.lognormvariate(0, self._sigma))
        histogram[bucket] = histogram.get(bucket, 0) + 1


def assess(
    pieces: list[Slice],
    now: float,
    memo: dict[str, object],
    evidence: tuple[EvidenceRecord, ...] = (),
    own: Guard = GUARD,
) -> Verdict:
    observation = Observation("team", "chat", "uid", 1, {}, Status(), slices=tuple(pieces), memo=memo)
    verdict = guard.assess(observation, own, Comparison(STABLE, CANARY, since=0.0, now=now, evidence=evidence))
    assert verdict is not None
    return verdict


def play(world: World, until: float, every: float = 4.0) -> Iterator[tuple[float, Verdict]]:
    """The verdict every few seconds."""
    pieces, memo = list[Slice](), dict[str, object]()
    for new in world.slices(until):
        pieces += new
        now = new[0].start + 2
        if now > 0 and now % every == 0:
            yield now, assess(pieces, now, memo)


def convicted(world: World, until: float, every: float = 4.0) -> tuple[float, int] | None:
    """When the canary is convicted, and after how many of its requests."""
    for now, verdict in play(world, until, every):
        if verdict.outcome is Outcome.REGRESSED:
            assert verdict.reason == "LatencyRegression"
            return now, world.requests
    return None


@pytest.mark.parametrize(("factor", "most"), [(100.0, 12), (3.0, 24), (2.0, 40), (1.5, 200)])
def test_the_worse_the_canary_the_fewer_users_meet_it(factor: float, most: int) -> None:
    for seed in range(3):
        found = convicted(World(seed, lambda _: factor), 600.0, 2.0)
        assert found is not None and found[1] <= most, f"{factor} x: {found}"


def test_a_canary_that_never_answers_is_convicted_while_its_clients_wait() -> None:
    found = convicted(World(1, lambda _: math.inf), 60.0, 2.0)
    assert found is not None and found[1] <= 16, f"{found}"


def queue_without_end(begin: float, now: float) -> dict[int, int]:
    """The ages of one request a second on a pod that answers none: each was expected to take as long as all before it."""
    ages: dict[int, int] = {}
    for number in range(int(now - begin)):
        bucket = bucket_of((now - begin - number) / (0.3 * (number + 1)))
        ages[bucket] = ages.get(bucket, 0) + 1
    return ages


def test_a_canary_that_hangs_is_convicted_although_its_queue_was_expected_to_take_long() -> None:
    for seed in range(3):
        pieces = [piece for new in World(seed).slices(40.0) for piece in new if piece.revision == STABLE]
        for now in range(2, 40, 2):
            load = {STRATUM: LoadCounts({}, queue_without_end(0.0, now))}
            pieces += [Slice("g", now - 2.0, 2.0, CANARY, STRATUM, 0, 0, started=2)]
            pieces += [Slice("g", now - 2.0, 2.0, CANARY, "", 0, 0, load=load)]
            known = [piece for piece in pieces if piece.start < now]
            if assess(known, now, {}).outcome is Outcome.REGRESSED:
                break
        assert now <= 8


def test_a_slow_tail_is_convicted_although_the_stable_s_times_vary_widely() -> None:
    """One request in twelve takes three times as long. The target is 3,000 requests (bench/rollout_guard.py, part tail)."""
    for seed in range(2 * SEEDS):
        source = random.Random(seed)
        world = World(seed, lambda _, draws=source: 3.0 if draws.random() < 0.08 else 1.0, sigma=0.6)
        found = convicted(world, 3000.0, 50.0)
        assert found is not None and found[1] <= 3000, f"{found}"


def test_a_regression_after_fifty_clean_minutes_is_found_about_as_fast_as_one_at_the_start() -> None:
    found = convicted(World(1, lambda now: 2.0 if now >= 3000 else 1.0), 3200.0, 20.0)
    assert found is not None and 3000 < found[0] <= 3060, f"{found}"


def test_an_identical_canary_passes_and_is_never_convicted() -> None:
    for seed in range(SEEDS):
        outcomes = [verdict.outcome for _, verdict in play(World(seed), 1500.0, 20.0)]
        assert Outcome.REGRESSED not in outcomes
        assert outcomes[-1] is Outcome.PASSED


def test_a_canary_a_little_worse_than_accepted_never_passes() -> None:
    for seed in range(SEEDS):
        for now, verdict in play(World(seed, lambda _: 1.25), 1200.0, 20.0):
            assert verdict.outcome is not Outcome.PASSED, f"after {now} s: {verdict.record.message}"


@pytest.mark.parametrize(("factor", "outcome"), [(1.0, Outcome.PASSED), (2.0, Outcome.REGRESSED)])
def test_a_canary_with_all_traffic_is_judged_by_what_the_stable_did(factor: float, outcome: Outcome) -> None:
    """A weight of 100 that is held for an hour; the canary is slower after the first half."""
    world, pieces, memo = World(1, lambda now: factor if now >= 2400 else 1.0), list[Slice](), dict[str, object]()
    for new in world.slices(3600.0):
        now = new[0].start
        pieces += [piece for piece in new if piece.revision == CANARY or now < 600]
        if now >= 600 and now % 60 == 0:
            verdict = assess(pieces, now + 2, memo)
            assert verdict.outcome is Outcome.PASSED or now >= 2400, f"after {now} s: {verdict.record.message}"
            if verdict.outcome is Outcome.REGRESSED:
                break
    assert verdict.outcome is outcome


def test_slowness_that_both_revisions_share_convicts_nobody() -> None:
    def busy(now: float) -> float:
        return 3.0 if 100 <= now % 300 < 160 else 1.0

    assert convicted(World(2, busy, lambda now, _: busy(now)), 900.0, 10.0) is None


def test_phases_that_single_stable_pods_have_too_convict_nobody() -> None:
    """Each stable pod is twice as slow for half a minute now and then, and so is the canary."""

    def phase(now: float, number: int) -> float:
        return 2.0 if (now + 97 * number) % 400 < 30 else 1.0

    assert convicted(World(3, lambda now: phase(now, 9), phase), 1200.0, 10.0) is None
    # Without such pods the same canary is convicted: the stable's own phases are what excuses it.
    assert convicted(World(3, lambda now: phase(now, 9)), 1200.0, 10.0) is not None


def test_two_requests_in_a_hundred_that_are_far_slower_leave_the_p95_as_it_is() -> None:
    """A guard of the p95 rolls back when the p95 is worse. It does not promote such a canary either."""

    def rare(now: float) -> float:
        return 6.0 if now % 100 == 50 else 1.0

    outcomes = [verdict for _, verdict in play(World(4, rare), 900.0, 10.0)]
    assert all(verdict.outcome is not Outcome.REGRESSED for verdict in outcomes)
    assert outcomes[-1].outcome is Outcome.INCONCLUSIVE
    assert "suspicious, not proven" in outcomes[-1].record.message


def test_one_outlier_decides_nothing() -> None:
    def outlier(now: float) -> float:
        return 1000.0 if now == 300 else 1.0

    assert convicted(World(4, outlier), 600.0, 10.0) is None


def test_without_enough_measurements_of_the_stable_there_is_no_verdict() -> None:
    pieces = [piece for new in World(1, lambda _: 3.0).slices(20.0) if new[0].start >= 0 for piece in new]
    verdict = assess(pieces[:6], 4.0, {})
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "of the 50 measured requests needed" in verdict.record.message


def test_an_operator_that_restarts_continues_with_the_stored_evidence() -> None:
    """The second one has only the slices of the last quarter of an hour, as far as gateways store them."""
    world, memo, pieces = World(5, lambda _: 1.2), dict[str, object](), list[Slice]()
    before = None
    for new in world.slices(1800.0):
        pieces += new
        before = assess(pieces, new[0].start + 2, memo) if new[0].start % 20 == 18 and new[0].start > 0 else before
    assert before is not None and before.evidence[0].blocks > 800
    last = [piece for piece in pieces if piece.start >= 900]
    after = assess(last, 1800.0, {}, before.evidence)
    assert after.record.samples == before.record.samples
    assert after.record.evidence == pytest.approx(before.record.evidence, rel=0.5)
    other = replace(before.evidence[0], canary="another")
    assert assess(last, 1800.0, {}, (other,)).record.samples < before.record.samples


def test_an_operator_that_restarts_retains_the_requests_since_the_evidence_began_to_grow() -> None:
    """A regression that begins late is convicted by these: the canary's p95 since its beginning is still accepted."""
    begin = 1500.0
    world, memo, pieces = World(7, lambda now: 1.4 if now >= begin else 1.0), dict[str, object](), list[Slice]()
    for new in world.slices(begin + 600):
        pieces += new
        now = new[0].start + 2
        if now > begin or (now > 0 and now % 60 == 0):
            verdict = assess(pieces, now, memo)
            if verdict.outcome is Outcome.REGRESSED:
                break
    assert now > begin, "the canary is no worse before"
    known = [piece for piece in pieces if piece.start >= now - 900]
    after = assess(known, now, {}, verdict.evidence)
    assert after.outcome is Outcome.REGRESSED
    assert suspects(after) == suspects(verdict) > 20


def suspects(verdict: Verdict) -> int:
    times = [entry for entry in verdict.evidence[0].times if entry.signal == memory.SUSPECTS]
    return sum(sum(entry.counts.values()) for entry in times)


def test_the_verdict_names_the_ratio_its_interval_and_what_it_still_needs() -> None:
    seen = [verdict for _, verdict in play(World(6), 80.0, 20.0)]
    message = seen[-1].record.message
    assert "times the stable's at equal load, " in message and "15% more accepted" in message
    assert "more requests needed, about " in message and seen[-1].record.expected_seconds


def test_few_requests_of_the_stable_set_generous_thresholds() -> None:
    sample = Counter(bucket_of(0.01 * number) for number in range(50, 150))
    few, many = Reference(), Reference()
    few.add(0.0, {STRATUM: sample})
    for start in range(50):
        many.add(2.0 * start, {STRATUM: sample})
    low, high = many.thresholds(0.15)[0], few.thresholds(0.15)[0]
    assert low.stable[STRATUM] < high.stable[STRATUM]
    place = QUANTILES.index(0.99)
    assert STRATUM not in few.thresholds(0.15)[place].canary, "one request above a quantile does not make it known"
    assert [threshold.far for threshold in few.thresholds(0.15)][-2:] == [True, True] and FAR > 1


def test_a_ratio_has_no_upper_end_before_there_are_enough_requests() -> None:
    stable = {STRATUM: Counter(bucket_of(0.01 * number) for number in range(50, 150) for _ in range(10))}
    few = {STRATUM: {bucket_of(1.0): 10}}
    many = {STRATUM: Counter(bucket_of(0.01 * number) for number in range(50, 150) for _ in range(5))}
    found = ratio(few, {}, stable, 0.95, 1.0)
    assert found is not None and found.high is None
    found = ratio(many, {}, stable, 0.95, 1.0)
    assert found is not None and found.high is not None and found.low <= 1.0 <= found.high
    wider = ratio(many, {}, stable, 0.95, 4.0)
    assert wider is not None and wider.high is not None and wider.high - wider.low > found.high - found.low
    less, more = (requests_needed(stable[STRATUM], 0.95, increase, 4.0) for increase in (0.15, 0.02))
    assert less is not None and more is not None and less < more


def test_before_a_step_it_is_said_what_its_hold_can_show() -> None:
    pieces = [piece for new in World(7).slices(0.0) for piece in new]
    pieces += [Slice("g", piece.start, 2.0, STABLE, STRATUM, 18, 0, started=18) for piece in pieces]
    text = forecast(pieces, STABLE, ENTRY, 10, 300.0)
    assert text is not None
    assert "requests to pass on ttft p95, about " in text
    assert text.endswith("the step's hold of 5 minutes gives it about 270")
    assert forecast(pieces[:3], STABLE, ENTRY, 10, 300.0) is None
    # Before a rollout the slices that count requests are retained for two minutes, and the others for longer.
    thin = [piece for piece in pieces if piece.adjusted or piece.start >= -120.0]
    assert forecast(thin, STABLE, ENTRY, 10, 300.0) == text


def test_a_rollout_that_can_never_decide_says_so_beforehand() -> None:
    two = {bucket_of(1.0): 90, bucket_of(10.0): 10}
    pieces = [
        Slice("g", 2.0 * step, 2.0, STABLE, "", 0, 0, load={STRATUM: LoadCounts(two)}, started=0) for step in range(20)
    ]
    text = forecast(pieces, STABLE, replace(ENTRY, quantile=0.9, max_increase=0.15), 10, 300.0)
    assert text is not None and "raise maxIncrease or lower quantile" in text
    assert "no requests for 300 s" in (forecast(pieces, STABLE, replace(ENTRY, quantile=0.8), 10, 300.0) or "")
