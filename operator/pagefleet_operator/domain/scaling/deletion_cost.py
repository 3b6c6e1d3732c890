"""Which replicas go first when a revision shrinks: those with the fewest tokens in flight, then the coldest cache.

A LeaderWorkerSet takes the group with the highest number, whatever is advised. The ReplicaSet controller takes the pods of the lowest `controller.kubernetes.io/pod-deletion-cost` (Kubernetes 1.22 and
later; 1.21 behind the gate PodDeletionCost; before that, the newest of the ready pods). Pods without the annotation count
0: a pod that came since the last decrease is cold, and goes first.
"""

from __future__ import annotations

from collections.abc import Mapping

from pagefleet_operator.domain.status.observation import PodReading, RevisionReading

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
MOST = 2**31 - 1
# One page that a request holds outweighs any cache: a cut or slow stream is felt, a cold cache only costs time.
USED_PAGE = 1_000


def costs(revisions: Mapping[str, RevisionReading], replicas: Mapping[str, int]) -> dict[str, int]:
    """By pod, of the revisions that shrink and keep some."""
    return {
        pod.name: cost(pod)
        for name, found in revisions.items()
        if not found.grouped and found.replicas is not None and 0 < replicas.get(name, 0) < found.replicas
        for pod in found.pods
        if not pod.terminating
    }


def cost(pod: PodReading) -> int:
    """A pod that is not ready costs least; one that does not tell its load is taken to be as full as can be."""
    if not pod.ready:
        return 0
    load = pod.load
    if load is None or load.kv_pages_total is None or load.kv_pages_free is None:
        return MOST
    return max(1, min(MOST - 1, USED_PAGE * load.kv_pages_used + min(load.kv_pages_cached or 0, USED_PAGE - 1)))
