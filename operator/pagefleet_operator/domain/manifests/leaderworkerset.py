"""A revision's LeaderWorkerSet, of leaderworkerset.x-k8s.io/v1, where a replica is a group of several pods.

The leader is the pod of a Deployment with the flags of a group's first node. The workers run the same image with the
same flags, and no request is routed to them. A group begins and ends as a whole. Each group has a headless Service of
its own, because a shared one would have the name of our Service. Source: https://lws.sigs.k8s.io/docs/reference/
"""

from __future__ import annotations

import copy
from typing import Any

from pagefleet_contract.engine_options import MASTER_PORT
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.manifests.deployment import AFTER_DRAIN, deployment
from pagefleet_operator.domain.runtimes.catalog import node_launch_of
from pagefleet_operator.domain.runtimes.node import Node, NodeLaunch

GROUP, VERSION, KIND = "leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet"


def leader_worker_set(child: Child, replicas: int) -> dict[str, Any]:
    """Build the LeaderWorkerSet of a revision with this number of groups."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": child.metadata() | child.with_own(child.labels),
        "spec": {
            "replicas": replicas,
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"partition": 0, "maxSurge": 1, "maxUnavailable": 0},
            },
            "networkConfig": {"subdomainPolicy": "UniquePerReplica"},
            "leaderWorkerTemplate": {
                "size": child.spec.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": _leader(child),
                "workerTemplate": _worker(child),
            },
        },
    }


def _leader(child: Child) -> dict[str, Any]:
    template = _template(child, _launch(child, worker=False))
    container = template["spec"]["containers"][0]
    container["ports"] = [*container["ports"], {"name": "ranks", "containerPort": MASTER_PORT, "protocol": "TCP"}]
    return template


def _worker(child: Child) -> dict[str, Any]:
    """No probes: the leader is Ready when a step has run on all ranks, and ends when one is gone."""
    launch = _launch(child, worker=True)
    template = _template(child, launch)
    template["metadata"] = child.with_own(child.worker_labels)
    container = template["spec"]["containers"][0]
    for name in ("ports", "startupProbe", "readinessProbe", "livenessProbe"):
        container.pop(name, None)
    if launch.stops_at_once:
        # The worker gets its signal only after the leader's streams have had their time to end.
        grace = template["spec"]["terminationGracePeriodSeconds"] - AFTER_DRAIN
        container["lifecycle"] = {"preStop": {"exec": {"command": ["sleep", str(grace)]}}}
    template["spec"].pop("topologySpreadConstraints", None)
    return template


def _launch(child: Child, *, worker: bool) -> NodeLaunch:
    return node_launch_of(child.spec, Node(child.spec.nodes, worker))


def _template(child: Child, launch: NodeLaunch) -> dict[str, Any]:
    """A Deployment's pod with a group's flags in place of those for one pod; the flags of spec.engine.args stay."""
    template: dict[str, Any] = copy.deepcopy(deployment(child, 1)["spec"]["template"])
    container, names = template["spec"]["containers"][0], {flag.partition("=")[0] for flag in launch.flags}
    own_args = child.spec.engine.args
    adapter_args = container["args"][: len(container["args"]) - len(own_args)]
    container["args"] = [*(one for one in adapter_args if one.partition("=")[0] not in names), *launch.flags, *own_args]
    return template
