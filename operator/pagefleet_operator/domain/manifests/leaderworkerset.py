"""A revision whose replicas are several pods: a LeaderWorkerSet of leaderworkerset.x-k8s.io/v1, a group for each replica.

The leader is the pod of a Deployment with the flags of a group's first node; the workers run the same image with the same
flags and serve nobody. A group begins and ends as a whole. Each group has a headless Service of its own, because a shared
one would have the name of our Service. Source: https://lws.sigs.k8s.io/docs/reference/
"""

from __future__ import annotations

import copy
from typing import Any

from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.parallel import nodes
from pagefleet_operator.domain.manifests.deployment import AFTER_DRAIN, deployment
from pagefleet_operator.domain.runtimes.catalog import node_launch_of
from pagefleet_operator.domain.runtimes.node import MASTER_PORT, Node, NodeLaunch

GROUP, VERSION, KIND = "leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet"


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


def _leader(child: Child) -> dict[str, Any]:
    made = _template(child, _launch(child, worker=False))
    container = made["spec"]["containers"][0]
    container["ports"] = [*container["ports"], {"name": "ranks", "containerPort": MASTER_PORT, "protocol": "TCP"}]
    return made


def _worker(child: Child) -> dict[str, Any]:
    """No probes: the leader is Ready when a step has run on all ranks, and ends when one is gone."""
    launch = _launch(child, worker=True)
    made = _template(child, launch)
    made["metadata"] = {"labels": child.worker_labels}
    container = made["spec"]["containers"][0]
    for name in ("ports", "startupProbe", "readinessProbe", "livenessProbe"):
        container.pop(name, None)
    if launch.stops_at_once:
        # It is told when the leader's streams have had their time.
        patience = made["spec"]["terminationGracePeriodSeconds"] - AFTER_DRAIN
        container["lifecycle"] = {"preStop": {"exec": {"command": ["sleep", str(patience)]}}}
    made["spec"].pop("topologySpreadConstraints", None)
    return made


def _launch(child: Child, *, worker: bool) -> NodeLaunch:
    return node_launch_of(child.snapshot, Node(nodes(child.snapshot), worker))


def _template(child: Child, launch: NodeLaunch) -> dict[str, Any]:
    """A Deployment's pod with the flags of a group, each in place of what it says for one pod; spec.engine.args stay."""
    made: dict[str, Any] = copy.deepcopy(deployment(child, 1)["spec"]["template"])
    container, names = made["spec"]["containers"][0], {flag.partition("=")[0] for flag in launch.flags}
    given = (child.snapshot.get("engine") or {}).get("args") or []
    written = container["args"][: len(container["args"]) - len(given)]
    container["args"] = [*(one for one in written if one.partition("=")[0] not in names), *launch.flags, *given]
    return made
