"""Pagefleet's own engine: its images, its command line (build/flags.py) and its probes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_contract.engine_options import MASTER_PORT
from pagefleet_operator.domain.base.accelerator import gpus
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.runtimes.flags import drain_seconds, flags
from pagefleet_operator.domain.runtimes.launch import TEMPORARY, Launch, engine_part, plain, threads
from pagefleet_operator.domain.runtimes.node import INDEX, LEADER, Node, NodeLaunch
from pagefleet_operator.domain.runtimes.volumes import CACHE_FOLDER

SLOTS_FLAG, SLOTS = "--max-num-seqs", 64  # the engine's default


def launch(child: Child, release: str) -> Launch:
    """`release`: of the operator, and so of the image. It says on /ready when it can serve, and drains by itself."""
    return Launch(
        image=image(child.snapshot, release),
        args=("serve", *flags(child)),
        drain=drain_seconds(engine_part(child.snapshot, "limits")),
        env=(
            plain("OMP_NUM_THREADS", threads(child.snapshot)),
            plain("HOME", TEMPORARY),
            *((plain("HF_HOME", CACHE_FOLDER),) if "cache" in child.snapshot["model"] else ()),
        ),
        startup="/ready",
        readiness="/ready",
        readiness_failures=1,
    )


def node_launch(node: Node) -> NodeLaunch:
    """Workers end with their leader; what the ranks share is said as for one pod (build/flags.py)."""
    place = (f"--nnodes={node.count}", f"--node-rank={INDEX}")
    return NodeLaunch((*place, f"--master-addr={LEADER}", f"--master-port={MASTER_PORT}"))


def image(snapshot: Mapping[str, Any], release: str) -> str:
    kind = "engine-cuda" if gpus(snapshot) else "engine-cpu"
    return f"docker.io/pagefleet/{kind}:{release}"
