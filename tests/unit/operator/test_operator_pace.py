"""Protects the pace of decisions: while a canary is judged, each comes just after the gateways have closed a slice."""

from __future__ import annotations

import pytest
from support.virtual.cluster import Cluster

from pagefleet_operator.domain.decide import BUSY_SECONDS, CLOSED_SECONDS, IDLE_SECONDS, decide
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
