"""A pod of a group of pods that together are one replica: its place in the group, and the flags by which its engine
learns of it. Pure; manifests/leaderworkerset.py makes the groups."""

from __future__ import annotations

from dataclasses import dataclass

from pagefleet_operator.domain.base.revision_spec import RevisionSpec

# The LeaderWorkerSet's controller puts these into every container before what the pod template has, so that arguments may
# name them.
LEADER, INDEX = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"


@dataclass(frozen=True)
class Node:
    """One of the `count` pods of a replica; `worker`: not the leader."""

    count: int
    worker: bool


@dataclass(frozen=True)
class NodeLaunch:
    """`flags` beside, or in place of, those for a replica of one pod. `stops_at_once`: a worker ends at SIGTERM, when the
    leader's streams still go on."""

    flags: tuple[str, ...] = ()
    stops_at_once: bool = False


def shares(spec: RevisionSpec) -> dict[str, int]:
    """How many accelerators share each layer, and into how many groups the layers are split: vLLM's and SGLang's flags."""
    return {
        "--tensor-parallel-size": spec.tensor_parallel,
        "--pipeline-parallel-size": spec.engine.pipeline_parallel_size,
    }
