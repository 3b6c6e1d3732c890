"""The order in which pods are deleted when a revision shrinks: first the pods with the fewest tokens in flight, then those
with the coldest cache.

The ReplicaSet controller deletes the pods with the lowest `controller.kubernetes.io/pod-deletion-cost` first (Kubernetes
1.22 and later; 1.21 behind the gate PodDeletionCost; earlier versions delete the newest of the ready pods). A pod without
the annotation counts as 0: it came since the last decrease, so its cache is cold, and it is deleted first. A
LeaderWorkerSet deletes the group with the highest number, whatever the annotation is.
"""

from __future__ import annotations

from collections.abc import Mapping

from pagefleet_operator.domain.status.observation import PodReading, RevisionReading

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
MAX_COST = 2**31 - 1
# One page that a request holds outweighs any cache: users notice a broken or slow stream, a cold cache only costs time.
USED_PAGE_COST = 1_000


def costs(revisions: Mapping[str, RevisionReading], replicas: Mapping[str, int]) -> dict[str, int]:
    """The cost of each pod of the revisions that shrink but retain some pods."""
    return {
        pod.name: cost(pod)
        for name, reading in revisions.items()
        if not reading.grouped and reading.replicas is not None and 0 < replicas.get(name, 0) < reading.replicas
        for pod in reading.pods
        if not pod.terminating
    }


def cost(pod: PodReading) -> int:
    """The lowest cost for a pod that is not ready; the highest for one whose load is not known. Where an engine reports no pages, a
    request counts as one."""
    if not pod.ready:
        return 0
    load = pod.load
    if load is None:
        return MAX_COST
    paged = load.kv_pages_total is not None and load.kv_pages_free is not None
    used = load.kv_pages_used if paged else load.running + load.waiting
    cached = min(load.kv_pages_cached or 0, USED_PAGE_COST - 1)
    return max(1, min(MAX_COST - 1, USED_PAGE_COST * used + cached))
