"""Pagefleet's own engine: its images, its command line (flags.py) and its probes."""

from __future__ import annotations

from pagefleet_contract.engine_metrics import OURS
from pagefleet_contract.engine_options import (
    BATCH_SIZES,
    DEFAULT_PAGE_SIZE,
    FLAG_FIELDS,
    MASTER_PORT,
    SHARED_FLAGS,
    SLOTS_FLAG,
)
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.revision_spec import NVIDIA, RevisionSpec
from pagefleet_operator.domain.runtimes import kv_events
from pagefleet_operator.domain.runtimes.adapter import Adapter, Sleep
from pagefleet_operator.domain.runtimes.flags import drain_seconds, flags
from pagefleet_operator.domain.runtimes.launch import TEMPORARY, Launch, plain, threads
from pagefleet_operator.domain.runtimes.node import INDEX, LEADER, Node, NodeLaunch

# The engine's own default, by the accelerator's resource name. A device that the engine finds by itself is not known here.
DEFAULT_SLOTS = {"": BATCH_SIZES["cpu"].sequences, NVIDIA: BATCH_SIZES["cuda"].sequences}
OWNED = {flag: f"spec.{field}" if field else "" for flag, field in FLAG_FIELDS.items() if flag not in SHARED_FLAGS}
SHARED = {flag: tuple(FLAG_FIELDS[flag].split(".")) for flag in SHARED_FLAGS}


def launch(child: Child, release: str) -> Launch:
    """`release` is the operator's version and the image's. The engine answers /ready when it can serve, and drains by
    itself."""
    spec = child.spec
    return Launch(
        image=image(spec, release),
        args=("serve", *flags(child)),
        drain=drain_seconds(spec.engine.limits.output_tokens),
        env=(
            plain("OMP_NUM_THREADS", threads(spec)),
            plain("HOME", TEMPORARY),
            *kv_events.env(spec),
        ),
        startup="/ready",
        readiness="/ready",
        readiness_failures=1,
    )


def node_launch(_: RevisionSpec, node: Node) -> NodeLaunch:
    """Where a pod stands in its group. Workers end with their leader; flags.py writes how the ranks share the model."""
    place = (f"--nnodes={node.count}", f"--node-rank={INDEX}")
    return NodeLaunch((*place, f"--master-addr={LEADER}", f"--master-port={MASTER_PORT}"))


def image(spec: RevisionSpec, release: str) -> str:
    kind = "engine-cuda" if spec.gpus else "engine-cpu"
    return f"docker.io/pagefleet/{kind}:{release}"


ADAPTER = Adapter(
    name="pagefleet",
    launch=launch,
    node_launch=node_launch,
    owned_flags=OWNED,
    shared_flags=SHARED,
    slots_flag=SLOTS_FLAG,
    slots=DEFAULT_SLOTS,
    reads_packages=True,
    unsupported={"model.speculation.method": ("eagle",), "engine.disaggregation": ()},
    metrics=OURS,
    default_page_tokens=DEFAULT_PAGE_SIZE,
    sleep=Sleep(),
)
