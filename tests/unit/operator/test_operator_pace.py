"""Protects the pace of decisions: while a canary is judged, each comes just after the gateways have closed a slice, and after
fewer of them only while nothing speaks against the canary and nothing becomes due."""

from __future__ import annotations

import pytest
from support.virtual.cluster import Cluster

from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.rollout.pace import (
    BUSY_SECONDS,
    CALM_SECONDS,
    CLOSED_SECONDS,
    IDLE_SECONDS,
    YOUNG_SECONDS,
)
from pagefleet_operator.domain.status.status import Phase

SLICE = 2.0


@pytest.mark.parametrize("uid", ["one", "another", "a third"])
@pytest.mark.parametrize("shift", [0.0, 0.09, 0.3, 0.7, 1.3, 1.99])
def test_a_judged_canary_is_decided_on_when_a_slice_is_closed(uid: str, shift: float) -> None:
    cluster = Cluster(1)
    cluster.uid = uid
    cluster.until(lambda status: status.rollout.phase is Phase.IDLE)
    cluster.edit(4)
    cluster.until(lambda _: bool(cluster.weight()))
    now, observation = cluster.now + shift, cluster.observe()
    for _ in range(3):
        pause = decide(observation, now).requeue
        now += pause
        assert CLOSED_SECONDS[0] - 1e-6 <= now % SLICE <= CLOSED_SECONDS[1] + 1e-6
        assert CLOSED_SECONDS[0] <= pause <= SLICE + CLOSED_SECONDS[0]
    assert pause == pytest.approx(SLICE)


def test_services_without_a_canary_keep_their_pace() -> None:
    cluster = Cluster(1)
    cluster.until(lambda status: status.rollout.phase is Phase.IDLE)
    cluster.tick()
    assert cluster.plan is not None and cluster.plan.requeue == IDLE_SECONDS
    cluster.edit(4)
    cluster.slices = None
    cluster.tick()
    assert cluster.plan.requeue == BUSY_SECONDS


def in_step(hold: str = "10m") -> Cluster:
    """A canary that has just got its first weight."""
    cluster = Cluster(1)
    cluster.until(lambda status: status.rollout.phase is Phase.IDLE)
    guard = {"latency": [{"signal": "ttft"}], "warmupRequests": 0}
    cluster.spec = {**cluster.spec, "rollout": {"steps": [{"weight": 50, "hold": hold}], "guard": guard}}
    cluster.edit(4)
    cluster.until(lambda _: bool(cluster.weight()))
    return cluster


def pauses(cluster: Cluster, seconds: float) -> list[float]:
    """The pauses after the decisions of so many seconds, at two seconds each."""
    found = []
    for _ in range(int(seconds / SLICE)):
        cluster.tick()
        assert cluster.plan is not None
        found.append(cluster.plan.requeue)
    return found


def test_a_sound_canary_is_decided_on_less_often_after_the_first_half_minute_of_a_weight() -> None:
    cluster = in_step()
    young, later = pauses(cluster, YOUNG_SECONDS - 4), pauses(cluster, 120)[4:]
    assert max(young) <= SLICE + CLOSED_SECONDS[0]
    assert min(later) > CALM_SECONDS - SLICE and max(later) <= CALM_SECONDS + CLOSED_SECONDS[0]
    cluster.factor = 10
    suspicious = pauses(cluster, 30)
    assert cluster.weight(), "it is not proven yet"
    assert suspicious[-1] <= SLICE + CLOSED_SECONDS[0], "something speaks against the canary"


def test_the_end_of_a_step_is_not_decided_on_late() -> None:
    cluster, found = in_step("90s"), list[float]()
    while cluster.status.rollout.phase is Phase.STEP:
        found += pauses(cluster, SLICE)
    assert max(found) > SLICE + CLOSED_SECONDS[0] and max(found[-4:]) <= SLICE + CLOSED_SECONDS[0]
