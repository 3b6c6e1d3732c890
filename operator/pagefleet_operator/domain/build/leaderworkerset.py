"""A revision whose replicas are several pods: a LeaderWorkerSet of leaderworkerset.x-k8s.io/v1, a group for each replica.

The leader is the pod of a Deployment with the flags of a group's first node; the workers run the same image with the same
flags and serve nobody. A group begins and ends as a whole. Each group has a headless Service of its own, because a shared
one would have the name of our Service. Source: https://lws.sigs.k8s.io/docs/reference/
"""

from __future__ import annotations

import copy
from typing import Any

from pagefleet_operator.domain.build.deployment import AFTER_DRAIN, deployment
from pagefleet_operator.domain.build.names import Child
from pagefleet_operator.domain.parallel import nodes, pipeline_parallel, tensor_parallel
from pagefleet_operator.domain.runtime import runtime_name

GROUP, VERSION, KIND = "leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet"
MASTER_PORT = 29500
# Their workers end at SIGTERM, when the leader's streams still go on: they are told when those have had their time.
STOPPING_AT_ONCE = ("vllm", "sglang")
# The controller puts these into every container before what the pod template has, so that arguments may name them.
LEADER, INDEX = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"


def leader_worker_set(child: Child, replicas: int) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": child.metadata(),
        "spec": {
            "replicas": replicas,
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"partition": 0, "maxSurge": 1, "maxUnavailable": 0},
            },
            "networkConfig": {"subdomainPolicy": "UniquePerReplica"},
            "leaderWorkerTemplate": {
                "size": nodes(child.snapshot),
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": _leader(child),
                "workerTemplate": _worker(child),
            },
        },
    }


def node_flags(runtime: str, child: Child, *, worker: bool) -> list[str]:
    """What a group's pod is told beside the flags that all have. A custom runtime's arguments name the controller's
    variables themselves."""
    count, size = nodes(child.snapshot), tensor_parallel(child.snapshot)
    match runtime:
        case "pagefleet":
            return [
                f"--nnodes={count}",
                f"--node-rank={INDEX}",
                f"--master-addr={LEADER}",
                f"--master-port={MASTER_PORT}",
            ]
        case "vllm":
            return [
                f"--nnodes={count}", f"--node-rank={INDEX}", f"--master-addr={LEADER}", f"--master-port={MASTER_PORT}",
                "--distributed-executor-backend=mp", f"--tensor-parallel-size={size}",
                f"--pipeline-parallel-size={pipeline_parallel(child.snapshot)}", *(["--headless"] if worker else []),
            ]  # fmt: skip
        case "sglang":
            return [
                f"--nnodes={count}", f"--node-rank={INDEX}", f"--dist-init-addr={LEADER}:{MASTER_PORT}",
                f"--tensor-parallel-size={size}",
                f"--pipeline-parallel-size={pipeline_parallel(child.snapshot)}",
            ]  # fmt: skip
    return []


def _leader(child: Child) -> dict[str, Any]:
    made = _template(child, worker=False)
    container = made["spec"]["containers"][0]
    container["ports"] = [*container["ports"], {"name": "ranks", "containerPort": MASTER_PORT, "protocol": "TCP"}]
    return made


def _worker(child: Child) -> dict[str, Any]:
    """No probes: the leader is Ready when a step has run on all ranks, and ends when one is gone."""
    made = _template(child, worker=True)
    made["metadata"] = {"labels": child.worker_labels}
    container = made["spec"]["containers"][0]
    for name in ("ports", "startupProbe", "readinessProbe", "livenessProbe"):
        container.pop(name, None)
    if runtime_name(child.snapshot) in STOPPING_AT_ONCE:
        patience = made["spec"]["terminationGracePeriodSeconds"] - AFTER_DRAIN
        container["lifecycle"] = {"preStop": {"exec": {"command": ["sleep", str(patience)]}}}
    made["spec"].pop("topologySpreadConstraints", None)
    return made


def _template(child: Child, *, worker: bool) -> dict[str, Any]:
    """A Deployment's pod with the flags of a group, each in place of what it says for one pod; spec.engine.args stay."""
    made: dict[str, Any] = copy.deepcopy(deployment(child, 1)["spec"]["template"])
    container, told = made["spec"]["containers"][0], node_flags(runtime_name(child.snapshot), child, worker=worker)
    names = {flag.partition("=")[0] for flag in told}
    given = (child.snapshot.get("engine") or {}).get("args") or []
    written = container["args"][: len(container["args"]) - len(given)]
    container["args"] = [*(one for one in written if one.partition("=")[0] not in names), *told, *given]
    return made
