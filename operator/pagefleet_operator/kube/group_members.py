"""Reads the pods of LeaderWorkerSets' groups: which pods are leaders, and which fault of a worker keeps its leader from
being ready. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pagefleet_contract.names import WORKER_LABEL
from pagefleet_operator.domain.status.observation import PodFault, PodReading
from pagefleet_operator.kube.readings import fault, gates, revision_of

# https://lws.sigs.k8s.io/docs/reference/labels-annotations-and-environment-variables/
GROUP_LABEL = "leaderworkerset.sigs.k8s.io/group-index"  # the same on all pods of a group
SIZE_ANNOTATION = "leaderworkerset.sigs.k8s.io/size"  # of the group, on each of its pods
MAX_DIGITS = 9
CREATING_SECONDS = 60.0  # within which a group's pods are created after its leader


def is_worker(item: Mapping[str, Any]) -> bool:
    """Whether a pod computes for the leader of its group and serves no requests itself."""
    return WORKER_LABEL in (item["metadata"].get("labels") or {})


def with_fault_of_workers(
    leader: PodReading, item: Mapping[str, Any], workers: Iterable[Mapping[str, Any]], now: float
) -> PodReading:
    """The reading of a leader, with the fault that keeps it from being ready.

    The fault is that of a worker of its group that cannot run, or a worker that is never created (Kubernetes reports this
    only in Events of a StatefulSet). `item` is the leader's pod.
    """
    group = _group(item)
    if leader.ready or leader.terminating or leader.fault is not None or group is None:
        return leader
    members = [worker for worker in workers if _group(worker) == group]
    for worker in members:
        if (cause := fault(worker.get("status") or {}, gates(worker))) is not None:
            return replace(leader, fault=replace(cause, message=f"{worker['metadata']['name']}: {cause.message}"))
    size = str((item["metadata"].get("annotations") or {}).get(SIZE_ANNOTATION, ""))
    if (
        size.isdecimal()
        and len(size) <= MAX_DIGITS
        and 1 + len(members) < int(size)
        and now - leader.created > CREATING_SECONDS
    ):
        message = (
            f"{leader.name}: its group has {1 + len(members)} of {size} pods; a quota or a policy may refuse the others"
        )
        return replace(leader, fault=PodFault("Unschedulable", message, "spec.resources"))
    return leader


def _group(item: Mapping[str, Any]) -> tuple[str, str] | None:
    """A pod's revision and the number of its group; None outside a group."""
    index = (item["metadata"].get("labels") or {}).get(GROUP_LABEL)
    return None if index is None else (revision_of(item), str(index))
