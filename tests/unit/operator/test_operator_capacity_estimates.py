"""Protects what readings say of the numbers of `spec.capacityPlan`: a half-idle replica says nothing of its capacity but may refute a plan,
and the other numbers need enough requests."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support.virtual.planned import HALF_HOUR, NOW, PAGE, PAGES, Service, seen

from pagefleet_operator.domain.capacity_plan import estimates
from pagefleet_operator.domain.capacity_plan.estimates import Estimate
from pagefleet_operator.domain.capacity_plan.record import CLEARED, finding
from pagefleet_operator.domain.spec.capacity_plan import Assumption
from pagefleet_operator.domain.status.records.capacity_plan import Finding
from pagefleet_operator.domain.status.sample import ServiceLoad

RATE, OUTPUT, KV, SPEED, CACHE = Assumption
ABOVE, BELOW, HOLDS, UNKNOWN = Finding.ABOVE, Finding.BELOW, Finding.HOLDS, Finding.UNKNOWN


def test_near_the_planned_concurrency_the_throughput_is_known() -> None:
    true = Service().throughput(50)
    found = estimates.throughput_at(seen(50, noise=0.03), 50)
    assert found is not None
    assert found.low < true < found.high
    assert found.value == pytest.approx(true, rel=0.03)
    assert found.high / found.low < 1.1


def test_a_half_idle_replica_leaves_the_throughput_open() -> None:
    """It generates 400 tokens/s with 5 requests. With 50 these are 1,429, and could be anything from 400 to 4,000."""
    found = estimates.throughput_at(seen(5), 50)
    assert found is not None
    assert found.value is None
    assert found.low < Service().throughput(5) * 1.1
    assert found.high == pytest.approx(10 * Service().throughput(5), rel=0.1)


def test_a_replica_that_is_slow_with_few_requests_refutes_a_plan() -> None:
    """7 requests share 200 tokens/s or so; 50 cannot share more than 50 / 7 times as many."""
    found = estimates.throughput_at(seen(7, base=0.033), 50)
    assert found is not None
    assert found.high < 2000
    assert finding(found, 3000, 0.15, UNKNOWN) is BELOW
    assert finding(found, found.high, 0.15, UNKNOWN) is None


def test_idle_replicas_and_bursts_are_not_counted() -> None:
    idle = [replace(one, silent=frozenset({"p0"})) for one in seen(50)]
    assert estimates.throughput_at(idle, 50) is None, "in each reading a replica generates nothing"
    filling = Service().samples(NOW, HALF_HOUR, lambda time: 5 + 75 * ((time % 40) / 40))
    assert estimates.throughput_at(filling, 50) is None, "requests change by more than a quarter in each half-minute"
    assert estimates.throughput_at(seen(50, 200), 50) is None, "three minutes are too little"


def test_the_curve_reaches_a_little_further_than_the_load() -> None:
    """Loads from 20 to 42 show how the throughput rises. At 50 the curve is close; at 200 it is not asked."""
    samples = Service(noise=0.01).samples(NOW, HALF_HOUR, lambda time: 31 + 11 * math.sin(time / 400))
    near, far = estimates.throughput_at(samples, 50), estimates.throughput_at(samples, 200)
    assert near is not None and far is not None
    assert near.value == pytest.approx(Service().throughput(50), rel=0.05)
    assert near.high / near.low < 1.2
    assert far.value is None


def test_kv_tokens_of_a_request_are_those_it_holds_itself() -> None:
    found = estimates.kv_tokens(seen(30, noise=0.05), PAGE, 0)
    assert found is not None and found.value is not None
    assert found.value == pytest.approx(800, rel=0.03)
    assert found.low < 800 < found.high
    shared = estimates.kv_tokens(seen(30), PAGE, 3000)
    assert shared is not None and shared.value is not None
    assert shared.value == pytest.approx(800 - 3000 / 30, rel=0.01), "each replica holds the shared ones once"
    in_tokens = estimates.kv_tokens(seen(30), 1, 0)
    assert in_tokens is not None and in_tokens.value == pytest.approx(800 / PAGE + 0.5, rel=0.01), (
        "an engine that counts tokens"
    )
    assert estimates.kv_tokens(seen(0), PAGE, 0) is None
    unread = [replace(one, load=replace(one.load, kv_pages_total=None)) for one in seen(30)]
    assert estimates.kv_tokens(unread, PAGE, 0) is None


def test_the_room_of_a_cache_is_known_without_any_load() -> None:
    (*_, latest) = seen(0, 10)
    found = estimates.kv_cache_tokens(latest, PAGE)
    assert found == Estimate(PAGES * PAGE, PAGES * PAGE, PAGES * PAGE)
    assert estimates.kv_cache_tokens(replace(latest, serving=3), PAGE) is None, "a replica was not read"


def test_output_tokens_are_those_of_the_requests_that_ended() -> None:
    samples = Service().samples(NOW, HALF_HOUR, lambda time: 20 + 8 * math.sin(time / 200))
    found = estimates.output_tokens(samples, Service().started(samples))
    assert found is not None and found.value is not None
    assert found.value == pytest.approx(200, rel=0.02)
    steady = seen(20)
    few = dict.fromkeys(sorted(Service().started(steady))[:40], 1)
    assert estimates.output_tokens(steady, few) is None, "40 requests are too few"
    gaps = [replace(one, fresh=1) for one in samples]
    assert estimates.output_tokens(gaps, Service().started(samples)) is None, "a replica was not read"


def test_the_rate_is_that_of_the_busiest_five_minutes() -> None:
    arrivals = (1.0,) * 200 + (6.0,) * 30 + (1.0,) * 130
    found = estimates.busiest_rate(ServiceLoad(2.0, arrivals=arrivals))
    assert found is not None
    assert found.value == 6.0
    assert found.low == pytest.approx(6 - 3 * math.sqrt(1800) / 300)
    assert estimates.busiest_rate(None) is None
    assert estimates.busiest_rate(ServiceLoad(math.inf, arrivals=arrivals)) is None


@pytest.mark.parametrize(
    ("low", "high", "before", "says"),
    [
        (80, 84, UNKNOWN, BELOW),
        (80, 86, UNKNOWN, None),
        (95, 105, UNKNOWN, HOLDS),
        (100, 114.9, UNKNOWN, HOLDS),
        (100, 116, HOLDS, None),
        (116, 120, HOLDS, ABOVE),
        (114, 114.9, HOLDS, HOLDS),
        (114, 114.9, ABOVE, None),
        (100 + 100 * 0.15 * CLEARED - 1, 111, ABOVE, HOLDS),
        (50, 200, BELOW, None),
        (200, math.inf, UNKNOWN, ABOVE),
        (10, math.inf, UNKNOWN, None),
    ],
)
def test_what_an_interval_says_of_100_within_15_percent(
    low: float, high: float, before: Finding, says: Finding | None
) -> None:
    assert finding(Estimate(low, high), 100, 0.15, before) is says


def test_fewer_requests_than_planned_are_as_planned() -> None:
    few = Estimate(1, 3, 2)
    assert finding(few, 100, 0.15, UNKNOWN, one_sided=True) is HOLDS
    assert finding(few, 100, 0.15, ABOVE, one_sided=True) is HOLDS
    assert finding(Estimate(110, 130, 120), 100, 0.15, UNKNOWN, one_sided=True) is None
    assert finding(Estimate(116, 130, 120), 100, 0.15, UNKNOWN, one_sided=True) is ABOVE
