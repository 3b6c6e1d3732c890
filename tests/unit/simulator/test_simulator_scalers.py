"""Each scaler follows its own project's rule, on examples counted by hand from its documentation; ours is the operator's
function itself, and the same object."""

from random import Random
from typing import Any

import pytest

from pagefleet_operator.domain.scaling import autoscale, capacity
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_simulator.fleet.view import Bounds, PodView, Sums, View
from pagefleet_simulator.scalers import dynamo, hpa, keda, kpa, ours, wva
from pagefleet_simulator.scalers.windows import Reading, add, mean


def view(now: float = 100.0, desired: int = 1, pods: tuple[PodView, ...] = (), **values: float) -> View:
    from pagefleet_simulator.simulation import sums

    made = sums(pods)
    given = {name: values.pop(name) for name in list(values) if name in Sums.__dataclass_fields__}
    totals = Sums(**{**{name: getattr(made, name) for name in Sums.__dataclass_fields__}, **given})
    return View(
        now=now,
        since=values.pop("since", now - 15),
        desired=desired,
        sums=totals,
        held=int(values.pop("held", 0)),
        concurrency=values.pop("concurrency", 0.0),
        arrivals=(),
        arrivals_end=now,
        ttft=None,
        startups=(),
        slots=64,
        look=lambda: pods,
    )


def pod(number: int, **values: Any) -> PodView:
    """Return a pod with 100 KV pages, of which requests hold `used`."""
    own: dict[str, Any] = {"ready": True, "draining": False, "created": 0.0, "ready_since": 0.0}
    free = 100 - values.pop("used", 0)
    reported = {name: values.pop(name) for name in EngineLoad.__dataclass_fields__ if name in values}
    load = EngineLoad(kv_pages_total=100, kv_pages_free=free, **{"preemptions": 0.0, **reported})
    return PodView(name=f"pod-{number}", **{**own, **values}, load=load)


# -- ours -------------------------------------------------------------------------------------------------------------


def test_ours_is_the_operators_function() -> None:
    assert ours.RECOMMEND is autoscale.recommend is capacity.autoscale.recommend
    assert ours.SIZE is autoscale.size


def test_ours_gives_the_operators_answer() -> None:
    pods = tuple(pod(i, running=60, waiting=30, used=90) for i in range(2))
    fleet = view(desired=2, pods=pods)
    scaling = Scaling(min=1, max=8)
    decision = ours.Ours(scaling).decide(fleet, ours.Memory(), Bounds(1, 8))
    recommended = autoscale.recommend(
        ours.reading(fleet, ()), ours.load(fleet), 2, ours.Memory().record, scaling, 100.0
    )
    assert (decision.replicas, decision.memory.record) == (recommended.replicas, recommended.record)
    assert decision.replicas > 2


def test_a_large_fleet_summed_up_looks_as_its_pods_do() -> None:
    pods = tuple(pod(i, running=40, waiting=3, waiting_tokens=90, used=55, tokens=10.0) for i in range(300))
    fleet = view(desired=300, pods=pods)
    from pagefleet_operator.domain.scaling.load import totals

    assert ours.summed(fleet, ()).latest == totals(ours.reading(fleet, ()), 100.0).latest


# -- HPA --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "ratio", "ready", "unready", "expected"),
    [
        (1, 2.0, 1, 0, 2),  # "if the current value is 200m and the desired 100m, replicas double"
        (2, 0.5, 2, 0, 1),  # "if 50m, halve"
        (10, 1.09, 10, 0, 10),  # within the tolerance of 0.1
        (10, 1.11, 10, 0, 12),
        (4, 1.5, 2, 2, 4),  # two more are starting and count as using nothing: 1.5 x 2/4 is no longer above 1
        (4, 4.0, 2, 2, 8),
    ],
)
def test_hpa_ratio(current: int, ratio: float, ready: int, unready: int, expected: int) -> None:
    assert hpa.desired(current, ratio, ready, unready) == expected


def test_hpa_average_value() -> None:
    assert hpa.average_value(2, total=30, target=10) == 3
    assert hpa.average_value(3, total=31, target=10) == 3  # 1.03: within the tolerance
    assert hpa.average_value(3, total=0, target=10) == 0


def test_hpa_up_by_the_larger_of_four_pods_and_double_in_15_s() -> None:
    replicas, memory = hpa.behave(1, 50, hpa.Memory(), 0.0, hpa.Behavior())
    assert replicas == 5
    replicas, memory = hpa.behave(5, 50, memory, 15.0, hpa.Behavior())
    assert replicas == 10
    # Within the same 15 s what was added counts.
    replicas, _ = hpa.behave(10, 50, memory, 20.0, hpa.Behavior())
    assert replicas == 10


def test_hpa_down_to_the_highest_recommendation_of_300_s() -> None:
    memory = hpa.Memory()
    replicas = 10
    for now, expected in ((0.0, 10), (15.0, 6), (285.0, 4)):
        replicas, memory = hpa.behave(replicas, expected, memory, now, hpa.Behavior())
        assert replicas == 10
    replicas, memory = hpa.behave(10, 4, memory, 301.0, hpa.Behavior())
    assert replicas == 6
    replicas, _ = hpa.behave(6, 4, memory, 316.0, hpa.Behavior())
    assert replicas == 4


def test_hpa_is_off_at_zero() -> None:
    assert hpa.Hpa(4.0).decide(view(desired=0, held=9), hpa.Memory(), Bounds(0, 9)).replicas == 0


# -- KPA --------------------------------------------------------------------------------------------------------------


def test_kpa_target_is_70_percent_of_the_limit() -> None:
    # "containerConcurrency 10 at 70 %: 100 concurrent requests make ceil(100 / 7) = 15 pods"
    replicas, _ = kpa.scale(kpa.pods_for(100, 7.0), kpa.pods_for(100, 7.0), 15, kpa.Memory(), 0.0, kpa.Rules())
    assert replicas == 15


def test_kpa_panics_at_twice_the_ready_pods_and_does_not_shrink_in_it() -> None:
    rules = kpa.Rules()
    replicas, memory = kpa.scale(1, 4, 2, kpa.Memory(), 0.0, rules)
    assert (replicas, memory.panic_since) == (4, 0.0)
    replicas, memory = kpa.scale(1, 1, 4, memory, 30.0, rules)
    assert replicas == 4
    replicas, memory = kpa.scale(1, 1, 4, memory, 61.0, rules)
    assert (replicas, memory.panic_since) == (2, None)  # ceil(10/10) = 1, but at most halved


def test_kpa_halves_at_most() -> None:
    assert kpa.scale(1, 1, 9, kpa.Memory(), 0.0, kpa.Rules())[0] == 4


def test_kpa_last_pod_goes_after_the_grace_period() -> None:
    scaler, memory = kpa.Kpa(10.0), kpa.Memory()
    decided = []
    for now in (100.0, 120.0, 131.0):
        decision = scaler.decide(view(now, 1, (pod(0),), since=now - 2), memory, Bounds(0, 9))
        memory = decision.memory
        decided.append(decision.replicas)
    assert decided == [1, 1, 0]


# -- KEDA -------------------------------------------------------------------------------------------------------------


def test_keda_wakes_at_its_poll_and_sleeps_after_the_cooldown() -> None:
    scaler = keda.Keda(10.0)
    asleep = keda.Memory(polled=90.0)
    assert scaler.decide(view(105.0, 0, held=3), asleep, Bounds(0, 5)).replicas == 0  # 15 s after the last poll
    assert scaler.decide(view(120.0, 0, held=3), asleep, Bounds(0, 5)).replicas == 1
    idle = keda.Memory(polled=0.0, active=1000.0)
    assert scaler.decide(view(1299.0, 1, (pod(0),)), idle, Bounds(0, 5)).replicas == 1
    assert scaler.decide(view(1300.0, 1, (pod(0),)), idle, Bounds(0, 5)).replicas == 0
    assert scaler.decide(view(1300.0, 1, (pod(0),)), idle, Bounds(1, 5)).replicas == 1


# -- WVA --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kv", "queue", "pending", "change"),
    [
        ([0.75, 0.72], [1, 1], 0, 1),  # mean spare KV 0.065 < 0.1
        ([0.3, 0.3], [3, 3], 0, 1),  # mean spare queue 2 < 3
        ([0.75, 0.72], [1, 1], 1, 0),  # a replica is pending: no cascade
        ([0.3, 0.3], [0, 0], 0, -1),  # 0.6 on one leaves 0.2
        ([0.4, 0.4], [0, 0], 0, 0),  # 0.8 on one leaves nothing
        ([0.9, 0.95], [9, 9], 0, 1),  # all saturated
        ([0.1], [0], 0, 0),  # the last one stays
    ],
)
def test_wva_saturation(kv: list[float], queue: list[float], pending: int, change: int) -> None:
    replicas = [wva.Replica(one, line) for one, line in zip(kv, queue, strict=True)]
    assert wva.saturation(replicas, pending, wva.Thresholds()) == change


def test_wva_decides_each_minute_on_the_peaks_of_the_last() -> None:
    scaler, memory = wva.Wva(), wva.Memory(decided=90.0)
    busy = (pod(0, used=78), pod(1, used=78))
    decision = scaler.decide(view(105.0, 2, busy), memory, Bounds(1, 9))
    assert decision.replicas == 2
    calm = (pod(0, used=10), pod(1, used=10))
    decision = scaler.decide(view(150.0, 2, calm), decision.memory, Bounds(1, 9))
    assert decision.replicas == 3


# -- Dynamo -----------------------------------------------------------------------------------------------------------


def test_dynamo_limit_is_where_the_regression_meets_the_target() -> None:
    points = tuple((float(load), 0.1 + 0.001 * load) for load in range(0, 600, 100))
    assert dynamo.limit(points, 0.5, 5) == pytest.approx(400.0)
    assert dynamo.limit(points[:4], 0.5, 5) is None
    assert dynamo.limit(((1.0, 0.2),) * 9, 0.5, 5) is None


def test_dynamo_moves_by_one_and_only_when_all_agree() -> None:
    most = (1000.0, 50.0)
    assert dynamo.change([(1200, 10), (1100, 10)], most, 0.8) == 1
    assert dynamo.change([(1200, 10), (900, 10)], most, 0.8) == 0
    assert dynamo.change([(0, 60), (0, 51)], most, 0.8) == 1
    assert dynamo.change([(300, 19), (100, 10)], most, 0.8) == -1  # all below (2-1)/2 x 80 % of both
    assert dynamo.change([(300, 21), (100, 10)], most, 0.8) == 0


def test_dynamo_waits_until_its_change_is_in_force() -> None:
    memory = dynamo.Memory(((0.0, 0.1), (1000.0, 1.0)) * 5, ((0.0, 0.01), (50.0, 0.05)) * 5)
    pods = tuple(pod(i, waiting_tokens=5000, used=10) for i in range(2))
    assert dynamo.Dynamo().decide(view(desired=2, pods=pods), memory, Bounds(1, 9)).replicas == 3
    starting = (*pods, pod(2, ready=False, ready_since=None))
    assert dynamo.Dynamo().decide(view(desired=3, pods=starting), memory, Bounds(1, 9)).replicas == 3


# -- windows ----------------------------------------------------------------------------------------------------------


def test_window_means_are_weighted_by_time() -> None:
    readings = add(add((), Reading(0, 10, 4.0), 60), Reading(10, 40, 8.0), 60)
    assert mean(readings, 40, 60) == 7.0
    assert mean(readings, 40, 30) == 8.0


def test_keda_between_one_replica_and_its_most_is_the_hpa_that_it_makes() -> None:
    """What lets bench/autoscaling.py run one of the two."""
    random, bounds = Random(5), Bounds(1, 16)
    one, other = keda.Keda(40.0), hpa.Hpa(40.0, hpa.Metric.CONCURRENCY)
    inner, memory, desired = one.start(), other.start(), 3
    for number in range(400):
        running = random.randrange(0, 400 if number // 50 % 2 else 60)
        fleet = view(15.0 * number, desired, (pod(1, running=running, waiting=random.randrange(9)),))
        first, second = one.decide(fleet, inner, bounds), other.decide(fleet, memory, bounds)
        assert first.replicas == second.replicas
        desired, inner, memory = first.replicas, first.memory, second.memory
