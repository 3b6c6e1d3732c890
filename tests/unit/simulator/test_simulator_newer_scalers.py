"""The newer rules of llm-d's WVA, Dynamo and TokenScale, on examples counted by hand from their documentation and code."""

from __future__ import annotations

import pytest

from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_simulator.fleet import profile as profiles
from pagefleet_simulator.fleet.queueing import batch, highest_rate, latencies, step, velocity
from pagefleet_simulator.fleet.view import Bounds, View
from pagefleet_simulator.results.outcome import Objective
from pagefleet_simulator.scalers import dynamo_thresholds, wva_tokens
from pagefleet_simulator.scalers.catalog import PEERS, candidates_of, describe
from pagefleet_simulator.scalers.rated import DynamoSla, TokenScale, WvaQueueing, rate
from pagefleet_simulator.scalers.windows import Readings
from pagefleet_simulator.simulation import sums

PROFILE, LENGTHS = profiles.load("h100x4-llama-70b"), (1500.0, 700.0)


def view(now: float, arrivals: tuple[float, ...], desired: int = 1) -> View:
    return View(now, now - 5, desired, sums(()), 0, 0.0, arrivals, now, None, (), 64, tuple)


@pytest.mark.parametrize(("demand", "ready", "starting", "change"), [
    (170.0, 2, 0, 0), (171.0, 2, 0, 1), (171.0, 2, 1, 0), (400.0, 2, 0, 3), (70.0, 2, 0, -1), (71.0, 2, 0, 0), (1.0, 1, 0, 0),
    (10.0, 4, 0, -3), (10.0, 4, 1, 0),
])  # fmt: skip
def test_wva_by_tokens(demand: float, ready: int, starting: int, change: int) -> None:
    # A replica carries 100: up by what demand / 0.85 exceeds ready and starting, down by what demand / 0.7 leaves.
    assert wva_tokens.change(demand, 100.0, ready, starting, wva_tokens.Limits()) == change


def test_dynamo_thresholds_one_is_enough_to_grow_and_all_are_needed_to_shrink() -> None:
    change, target = dynamo_thresholds.change, dynamo_thresholds.THROUGHPUT
    assert [change(uses, target) for uses in ([1.1, 0.1], [0.5, 0.5], [0.5, 0.7], [0.1])] == [1, -1, 0, 0]
    assert change([0.41, 0.1], dynamo_thresholds.LATENCY) == 1


def test_dynamo_predicts_by_the_last_interval_or_by_a_line() -> None:
    rising = tuple(float(interval) for interval in range(1, 6) for _ in range(18))
    assert DynamoSla(1.0).predicted(view(900.0, rising)) == 5.0
    assert DynamoSla(1.0, line=True).predicted(view(900.0, rising)) == pytest.approx(6.0)
    assert DynamoSla(2.0, load=False).decide(view(900.0, rising), DynamoSla(2.0).start(), Bounds(1, 9)).replicas == 3


def test_wva_queueing_divides_the_minute_by_what_a_replica_carries() -> None:
    scaler = WvaQueueing(2.0)
    first = scaler.decide(view(60.0, (0.0, *[5.0] * 6)), scaler.start(), Bounds(1, 9))
    assert first.replicas == 3
    again = scaler.decide(view(75.0, (9.0,) * 6), first.memory, Bounds(1, 9))
    assert again.replicas == 3  # its loop takes 30 s
    assert scaler.decide(view(90.0, (9.0,) * 6), again.memory, Bounds(1, 9)).replicas == 5


def test_tokenscale_holds_its_buffer_and_shrinks_after_a_while() -> None:
    scaler = TokenScale(2.0, convertible=1, keep=60.0)
    memory: Readings = scaler.start()
    decided = []
    for now, newest in ((10.0, 6.0), (20.0, 2.0), (69.0, 2.0), (80.0, 2.0)):
        decision = scaler.decide(view(now, (newest,)), memory, Bounds(1, 9))
        memory = decision.memory
        decided.append(decision.replicas)
    assert decided == [4, 4, 4, 2]
    assert rate(view(10.0, ()), 60.0) == 0.0


def test_a_queueing_replica_waits_longer_the_nearer_it_is_to_its_end() -> None:
    most = batch(PROFILE, *LENGTHS) / (LENGTHS[1] * step(PROFILE, batch(PROFILE, *LENGTHS), *LENGTHS))
    firsts = [latencies(PROFILE, share * most, *LENGTHS)[0] for share in (0.3, 0.8, 0.95, 1.0)]
    assert firsts == sorted(firsts)
    strict, lax = (highest_rate(PROFILE, *LENGTHS, ttft, 0.1) for ttft in (0.3, 2.0))
    assert strict < lax < most
    assert latencies(PROFILE, lax, *LENGTHS)[0] <= 2.0
    assert velocity(PROFILE, *LENGTHS, 0.1) == pytest.approx(most, rel=0.1)


def test_every_setting_has_words_of_its_own() -> None:
    for name in PEERS:
        found = candidates_of(name, PROFILE, Scaling(min=1, max=9), Objective(), LENGTHS)
        assert len({describe(one) for one in found}) == len(found) and {one.name for one in found} == {name}
