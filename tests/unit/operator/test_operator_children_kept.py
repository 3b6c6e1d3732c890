"""Protects the objects of revisions that are kept between two decisions: with the memo or without it they are the same, and each
thing that they depend on makes them anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.virtual.cluster import Cluster

from pagefleet_operator.domain.children import children
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.status import RevisionRecord


@pytest.fixture
def observed() -> tuple[Observation, tuple[RevisionRecord, ...]]:
    cluster = Cluster(1)
    for _ in range(20):
        cluster.tick()
    status = replace(cluster.status, canary="another")
    return replace(cluster.observe(), status=status, memo={}), cluster.status.revisions


def test_objects_stay_while_nothing_changes_that_they_depend_on(
    observed: tuple[Observation, tuple[RevisionRecord, ...]],
) -> None:
    observation, history = observed
    (record,) = history
    first = children(observation, history, {record.hash: 2}, {})
    again = children(replace(observation, memo=observation.memo, generation=99), history, {record.hash: 2}, {})
    assert [one["kind"] for one in first] == ["Deployment", "Service", "PodDisruptionBudget"]
    assert all(one is other for one, other in zip(first, again, strict=True))
    alone = replace(observation, status=replace(observation.status, canary=""))
    children(alone, history, {record.hash: 2}, {})
    assert not observation.memo, "nothing is kept of a service without a canary"


def test_each_thing_that_objects_depend_on_makes_them_anew(
    observed: tuple[Observation, tuple[RevisionRecord, ...]],
) -> None:
    observation, (record,) = observed
    reading = observation.revisions[record.hash]
    templates: dict[str, Any] = {"template": {"spec": {"containers": [{"name": "engine", "image": "old"}]}}}
    spec: dict[str, Any] = {**record.spec, "engine": {"args": ["--max-num-seqs=9"]}}
    changes: list[tuple[Observation, RevisionRecord, int, dict[str, int]]] = [
        (observation, record, 3, {}),
        (observation, record, 2, {record.hash: 1}),
        (replace(observation, uid="other"), record, 2, {}),
        (replace(observation, revisions={record.hash: replace(reading, templates=templates)}), record, 2, {}),
        (observation, replace(record, spec=spec), 2, {}),
        (observation, replace(record, spec={}), 2, {}),
    ]
    for changed, own, replicas, spares in changes:
        before = children(replace(changed, memo=observation.memo), (record,), {record.hash: 2}, {})
        after = children(replace(changed, memo=observation.memo), (own,), {own.hash: replicas}, spares)
        assert after == children(replace(changed, memo={}), (own,), {own.hash: replicas}, spares)
        plain = children(replace(observation, memo={}), (record,), {record.hash: 2}, {})
        assert after != plain, "this changes the objects"
        assert before == children(replace(changed, memo={}), (record,), {record.hash: 2}, {})
    assert children(observation, (record,), {}, {}) == ()
