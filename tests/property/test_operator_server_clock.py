"""Protects rollouts, rollbacks and restores on a cluster whose API server and kubelets have another clock than the operator: every
decision is the one of equal clocks, and records that come late are read within the minute that the clocks may differ."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
from support.virtual.cluster import Cluster

from pagefleet_operator.domain.records.restoring import SKEW_SECONDS

AHEAD = (SKEW_SECONDS / 2, -SKEW_SECONDS / 2, 600.0, -600.0, 7200.0, -7200.0)
STEPS = [{"weight": 10, "hold": "40s"}, {"weight": 50, "hold": "40s"}]


def cluster_of(ahead: float, factor: float = 1.0) -> Cluster:
    cluster = Cluster(1)
    cluster.ahead, cluster.created, cluster.factor = ahead, cluster.now + ahead, factor
    cluster.spec["rollout"]["steps"] = STEPS
    return cluster


@functools.cache
def history(ahead: float, factor: float) -> tuple[Any, ...]:
    return tuple(_decisions(ahead, factor))


def _decisions(ahead: float, factor: float) -> Iterator[tuple[Any, ...]]:
    """The phase, weights, replicas and Events after each decision: a first revision, a canary, and the service created anew."""
    cluster = cluster_of(ahead, factor)
    for change, ticks in ((None, 20), (lambda: cluster.edit(2), 120), (cluster.replace_service, 60)):
        if change is not None:
            change()
        for _ in range(ticks):
            status = cluster.tick()
            events = tuple(event.reason for event in cluster.plan.events) if cluster.plan else ()
            yield status.rollout.phase, cluster.weights(), dict(cluster.replicas), events


@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize(("factor", "ends"), [(1.0, "Promoted"), (4.0, "RolledBack")])
def test_the_decisions_are_those_of_equal_clocks(ahead: float, factor: float, ends: str) -> None:
    expected = history(0.0, factor)
    reasons = {reason for *_, events in expected for reason in events}
    assert {ends, "Restored"} <= reasons
    assert history(ahead, factor) == expected


@pytest.mark.parametrize("ahead", [0.0, SKEW_SECONDS - 1, 1 - SKEW_SECONDS])
def test_records_that_come_after_the_service_are_read(ahead: float) -> None:
    cluster = cluster_of(ahead)
    first = cluster.serving()
    cluster.edit(2)
    cluster.until(lambda status: status.stable not in ("", first))
    stable, records = cluster.status.stable, dict(cluster.records)
    cluster.replace_service(records=False)
    cluster.edit(3)
    for _ in range(3):
        cluster.tick()
    cluster.records |= records
    cluster.tick()
    assert cluster.status.stable == stable
