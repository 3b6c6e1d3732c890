"""Protects the scaler where readings fail or lie: the gateways' counts drive it while no engine reports its load, never take a
replica away, and teach it nothing about replicas; a replica that hangs is no capacity until it generates again; a start-up time may be told, and shows itself in a first
pod that is not ready yet; one odd start moves it little."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.virtual.fleet import Replica, VirtualFleet

from pagefleet_operator.domain.scaling import throughput
from pagefleet_operator.domain.scaling.autoscale import size
from pagefleet_operator.domain.scaling.blind import estimated
from pagefleet_operator.domain.scaling.demand import demand
from pagefleet_operator.domain.scaling.inflow import flow
from pagefleet_operator.domain.scaling.load import HUNG_SECONDS, Totals, totals
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.spec.schema.targets import Targets
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.observation import PodReading, RevisionReading
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad
from pagefleet_operator.domain.status.status import ScalingRecord
from pagefleet_operator.metrics.history import Past

NOW = 3000.0


def warm(rate: Callable[[float], float], replicas: int, scaling: Scaling, seed: int = 1) -> VirtualFleet:
    fleet = VirtualFleet(rate, scaling, seed=seed)
    fleet.replicas = [Replica(f"first-{i}", fleet.now, fleet.now) for i in range(replicas)]
    fleet.desired = replicas
    return fleet


@pytest.mark.parametrize("seed", range(3))
def test_a_step_is_carried_by_what_the_gateways_count(seed: int) -> None:
    """4 requests/s, and 20 from 900 s on; the engines fall silent at 880 s and report again at 1300 s."""
    fleet = warm(lambda at: 4.0 if at < 900 else 20.0, 2, Scaling(1, 40), seed)
    fleet.run(880)
    fleet.engines_silent = True
    fleet.run(180)
    assert fleet.desired is not None
    assert fleet.desired >= 6, "20 requests/s of 203 tokens at 690 tokens/s a replica are 5.9"
    assert next(change for change in fleet.changes if change[0] > 900)[0] <= 925
    assert "no replica reports its load; by what the gateways count" in fleet.changes[-1][3]
    assert fleet.recommendations[-1].limit == "SignalsMissing", "nothing shrinks meanwhile"
    fleet.run(240)
    met, total = fleet.met, fleet.total
    fleet.engines_silent = False
    fleet.run(300)
    assert (fleet.met - met) / (fleet.total - total) > 0.97


def test_a_load_that_stays_orders_nothing_while_engines_are_silent() -> None:
    fleet = warm(lambda at: 8.0, 4, Scaling(1, 40))
    fleet.run(900)
    before = fleet.desired
    fleet.engines_silent = True
    fleet.run(1200)
    assert fleet.desired == before


def test_without_any_known_load_waiting_requests_and_late_first_tokens_count() -> None:
    """An operator that has just begun, and engines that it cannot read."""
    silent = Totals(Sample(NOW, 4, 0), slots=32)
    scaling = Scaling(1, 40, target=Targets(ttft=1.0))

    def asked(load: ServiceLoad | None) -> int:
        return size(silent, load, 4, ScalingRecord("a"), scaling, NOW).replicas

    usual = ServiceLoad(2.0, arrivals=(5.0,) * 60, ttft=0.4)
    assert asked(usual) == 4
    assert asked(replace(usual, ttft=1.3)) == 6, "1.3 times the target: ceil(4 x 1.3)"
    assert asked(replace(usual, held=40)) > 4
    assert asked(replace(usual, held=40, age=31.0)) == 4, "stale counts justify nothing"
    assert asked(None) == 4


def test_pages_and_tokens_are_estimated_with_the_requests() -> None:
    history = tuple(
        Sample(NOW - 900 + 5.0 * n, 2, 2, EngineLoad(running=20, kv_pages_total=2000, kv_pages_free=1500, tokens=400.0))
        for n in range(120)
    )
    seen = Totals(Sample(NOW, 3, 0), history=(*history, Sample(NOW - 5, 3, 0)))
    found = estimated(seen, ServiceLoad(0.0, arrivals=(4.0,) * 60 + (8.0,) * 30))
    assert found is not None
    load = found.latest.load
    assert (found.latest.serving, found.latest.fresh) == (3, 3)
    assert load.running == pytest.approx(40, abs=4)
    assert load.tokens == pytest.approx(800, rel=0.1)
    assert load.kv_pages_total == 3000
    assert load.kv_pages_used == pytest.approx(1000, rel=0.1)
    assert estimated(replace(seen, latest=Sample(NOW, 3, 1)), ServiceLoad(0.0, arrivals=(4.0,) * 90)) is None


def silent(now: Sample | None = None) -> Totals:
    """Return 5 replicas with 24 to 40 sequences each that fell silent 5 minutes ago, and 16 of today; `now` is read again."""
    history = tuple(
        Sample(NOW - 300 - 5.0 * back, 5, 5, EngineLoad(running=5 * r, kv_pages_total=10000, kv_pages_free=10000 - 150 * r, tokens=5 * r / (0.02 + 0.0008 * r)))
        for back, r in ((back, (24, 36, 40, 30)[back // 12 % 4]) for back in range(240, 0, -1))
    )  # fmt: skip
    unread = tuple(Sample(NOW - 300 + 5.0 * n, 5 + 11 * (n > 12), 0) for n in range(60))
    return Totals(now or Sample(NOW, 16, 0), slots=64, history=(*history, *unread))


@pytest.mark.parametrize("rate", [9.0, 20.0])
def test_what_a_replica_carries_is_what_was_last_read(rate: float) -> None:
    """Neither the replicas that have joined meanwhile nor the estimate of the load tell what a replica carries."""
    load = ServiceLoad(0.0, arrivals=(9.0,) * 150 + (rate,) * 30)
    scaling = Scaling(1, 40, target=Targets(tpot=0.1))
    seen = silent()
    guess = estimated(seen, load)
    assert guess is not None
    known = [one for one in seen.history if one.fresh]
    before = demand(Totals(known[-1], slots=64, history=tuple(known[:-1])), None, scaling, 60.0, 60.0, 900.0)
    during = demand(guess, load, scaling, 60.0, 60.0, 900.0)
    assert before.replica.tokens is not None
    assert during.replica.sequences == before.replica.sequences
    assert during.replica.tokens == pytest.approx(before.replica.tokens, rel=0.01)
    assert during.steady == pytest.approx(before.steady * rate / 9.0, rel=0.25)


def test_the_first_reading_after_a_silence_is_not_taken_for_the_time_of_the_silence() -> None:
    """9 requests a second, about 730 tokens a second of each replica before: 82 tokens of a request. Twice as many arrive afterwards."""
    seen = silent(Sample(NOW, 16, 16, EngineLoad(running=16 * 30, tokens=16 * 682.0)))
    past = [*seen.history, seen.latest]
    load = ServiceLoad(0.0, arrivals=(9.0,) * 150 + (18.0,) * 30)
    read = [one for one in past if one.fresh]
    tokens = sum(one.load.tokens or 0.0 for one in read[1:-1]) / len(read[1:-1])
    assert flow(load, [seen.latest], past, 60.0).each == pytest.approx(tokens / 9.0, rel=0.05)


def test_half_a_minute_that_was_read_in_part_is_a_mean_of_what_was_read() -> None:
    def entry(at: float, fresh: int) -> Sample:
        return Sample(at, 2, fresh, EngineLoad(running=40 + round(at), tokens=800.0) if fresh else EngineLoad())

    ended = throughput.means([*(entry(at, 2) for at in (0.0, 5.0, 10.0)), *(entry(at, 0) for at in (15.0, 20.0, 25.0))])
    began = throughput.means([*(entry(at, 0) for at in (0.0, 5.0, 10.0)), *(entry(at, 2) for at in (15.0, 20.0, 25.0))])
    assert [(one.replicas, one.running, one.tokens, one.change, one.whole) for one in (*ended, *began)] == [
        (2.0, 45.0, 800.0, 1.0, False),
        (2.0, 60.0, 800.0, 1.0, False),
    ]
    assert throughput.means([entry(at, 0) for at in (0.0, 5.0)]) == []


def test_a_replica_that_hangs_is_no_capacity_until_it_generates_again() -> None:
    """16 requests/s on six replicas, of which one takes requests and reports that it is idle and free."""
    fleet = warm(lambda at: 16.0, 8, Scaling(1, 40, stabilization=60.0))
    fleet.run(900)
    assert fleet.desired == 6
    fleet.replicas[0].hung = True
    hung = fleet.replicas[0].name
    fleet.run(HUNG_SECONDS + 10)
    assert fleet.desired == 7
    assert f"{hung} generate nothing and count as missing" in fleet.changes[-1][3]
    assert totals(fleet.reading(), fleet.now).hung == (hung,)
    fleet.run(800)
    assert fleet.desired == 7, "one for one, and no more"
    fleet.replicas[0].hung = False
    fleet.run(10)
    assert totals(fleet.reading(), fleet.now).hung == ()


def test_an_idle_fleet_has_no_hung_replica() -> None:
    """One request in ten seconds leaves replicas without a token for minutes."""
    fleet = warm(lambda at: 0.1, 3, Scaling(3, 40))
    fleet.run(1800)
    assert fleet.changes == []


def asked(startup: float, starting_for: float = 0.0, learned: float | None = None) -> int:
    """Return the replicas for 8 that serve 10 requests a second, when 20 arrive."""
    history = tuple(
        Sample(NOW - 5.0 * back, 8, 8, EngineLoad(running=8 * r, kv_pages_total=8000, kv_pages_free=5600, tokens=8 * r / (0.02 + 0.0008 * r)))
        for back, r in ((back, (24, 36, 40, 30)[back // 12 % 4]) for back in range(360, 0, -1))
    )  # fmt: skip
    sums = Totals(replace(history[-1], time=NOW), starting=1, slots=64, history=history, ages=(starting_for,))
    load = ServiceLoad(age=2.0, arrivals=(10.0,) * 174 + (20.0,) * 6)
    record = ScalingRecord("a", startup=learned)
    return size(sums, load, 8, record, Scaling(1, 99, startup=startup), NOW).replicas


def test_a_start_up_time_is_told_seen_and_learned() -> None:
    assert asked(120.0) > asked(10.0), "more piles up until a replica is ready"
    assert asked(10.0, starting_for=120.0) == asked(120.0, starting_for=120.0), (
        "a first pod that is not ready after 120 s takes at least as long"
    )
    assert asked(120.0, learned=10.0) == asked(10.0), "what was learned comes before what was told"
    told = parse({"model": {"source": "file:///m"}, "scaling": {"min": 1, "max": 2, "startup": "20m"}})
    assert isinstance(told, Spec)
    assert told.scaling.startup == 1200.0


DAY = 86400.0


@pytest.mark.parametrize(
    ("created", "why"),
    [(3 * DAY, "an operator has begun, and a replica of three days was not ready for a moment"), (10800.0, "no node")],
)
def test_one_odd_start_does_not_make_every_start_look_long(created: float, why: str) -> None:
    """The load has not changed. A start of an hour would ask for three times the replicas, in case that the load rises within it."""
    pod = PodReading("a-1", True, False, NOW - created, NOW - 60.0)
    read = Past().remembered(("ns", "chat"), {"a": RevisionReading("a", 8, (pod,))}, NOW)["a"]
    startups = totals(read, NOW).startups
    assert startups == ((NOW - 60.0, created - 60.0),)
    history = tuple(
        Sample(NOW - 5.0 * back, 8, 8, EngineLoad(running=192, tokens=4800.0)) for back in range(360, 0, -1)
    )
    sums = Totals(replace(history[-1], time=NOW), slots=64, history=history, startups=startups)
    load = ServiceLoad(age=2.0, arrivals=(10.0,) * 180)
    usual = ScalingRecord("a", startup=60.0, learned=NOW - 4 * DAY)
    decided = size(sums, load, 8, usual, Scaling(1, 99), NOW)
    assert decided.replicas == 8, why
    assert decided.record.startup is not None and decided.record.startup <= 120.0
    later = replace(sums, startups=tuple((NOW + one, 400.0) for one in range(5)))
    slow = size(later, load, 8, usual, Scaling(1, 99), NOW + 10.0)
    assert slow.record.startup is not None and slow.record.startup > 250.0, (
        "starts that are longer again and again count"
    )
