"""Protects the history of Ready pods with which recordings are checked: a first weight needs a pod that is Ready at that time, or
was a moment before; what the status itself counts does not matter."""

from __future__ import annotations

from typing import Any

import pytest
from support.ready_pods import GRACE_SECONDS, ReadyPods


def pod(version: int, *, ready: bool, kind: str = "MODIFIED") -> dict[str, Any]:
    labels = {"pagefleet.io/service": "chat", "pagefleet.io/revision": "b"}
    metadata = {"namespace": "team", "name": "p", "uid": "p", "resourceVersion": str(version), "labels": labels}
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {"type": kind, "object": {"metadata": metadata, "status": {"conditions": conditions}}}


def service(version: int, **weights: int) -> dict[str, Any]:
    traffic = [{"revision": revision, "weight": weight} for revision, weight in weights.items()]
    metadata = {"namespace": "team", "name": "chat", "uid": "s", "resourceVersion": str(version)}
    return {"metadata": metadata, "status": {"traffic": traffic}}


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([], True),
        ([(5, True, 0.0)], False),
        ([(5, False, 0.0)], True),
        ([(11, True, 1.0)], True),
        ([(5, True, 0.0), (9, False, 100.0), (10, False, 100.0 + GRACE_SECONDS / 2)], False),
        ([(5, True, 0.0), (6, False, 1.0), (10, False, 2.0 + GRACE_SECONDS)], True),
        ([(5, True, 0.0), (12, False, 1.0)], False),
    ],
)
def test_a_first_weight_needs_a_ready_pod_of_its_time(events: list[tuple[int, bool, float]], found: bool) -> None:
    history = ReadyPods()
    for version, ready, now in events:
        history.take(pod(version, ready=ready), now)
    violations = history.without_pods([service(3, a=100), service(10, a=50, b=50)])
    assert bool(violations) is found, violations


def test_a_deleted_pod_is_not_ready_and_a_gap_says_nothing() -> None:
    history = ReadyPods()
    history.take(pod(5, ready=True), 0.0)
    history.take(pod(6, ready=True, kind="DELETED"), 1.0)
    history.take(pod(9, ready=False), 2.0 + GRACE_SECONDS)
    versions = [service(3, a=100), service(10, a=50, b=50)]
    assert history.without_pods(versions) != []
    history.missed()
    assert history.without_pods(versions) == []
