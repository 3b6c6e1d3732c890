"""Pagefleet's own engine: its images, its command line (flags.py) and its probes."""

from __future__ import annotations

from pagefleet_contract.engine_metrics import OURS
from pagefleet_contract.engine_options import BATCH_SIZES, MASTER_PORT
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.revision_spec import NVIDIA, RevisionSpec
from pagefleet_operator.domain.runtimes.adapter import SLOTS, TOKENS_PER_STEP, Adapter
from pagefleet_operator.domain.runtimes.flags import drain_seconds, flags
from pagefleet_operator.domain.runtimes.launch import TEMPORARY, Launch, plain, threads
from pagefleet_operator.domain.runtimes.node import INDEX, LEADER, Node, NodeLaunch
from pagefleet_operator.domain.runtimes.volumes import CACHE_FOLDER

SLOTS_FLAG = "--max-num-seqs"
# The engine's own default, by the accelerator's resource name. A device that the engine finds by itself is not known here.
DEFAULT_SLOTS = {"": BATCH_SIZES["cpu"].sequences, NVIDIA: BATCH_SIZES["cuda"].sequences}
# Flags that the operator writes, with the field that sets each.
OWNED = {
    "--model": "spec.model.source", "--served-model-name": "spec.model.servedName", "--host": "", "--port": "",
    "--max-model-len": "spec.model.maxLength", "--quantization": "spec.model.quantization",
    "--speculation": "spec.model.speculation.method", "--speculation-tokens": "spec.model.speculation.tokens",
    "--speculation-model": "spec.model.speculation.model", "--lora-adapter": "spec.model.adapters",
    "--chat-template": "spec.model.chatTemplate", "--page-size": "spec.engine.kvCache.pageSize",
    "--num-pages": "spec.engine.kvCache.pages", "--kv-memory-fraction": "spec.engine.kvCache.memoryFraction",
    "--kv-cache-dtype": "spec.engine.kvCache.dtype", "--no-prefix-caching": "spec.engine.kvCache.prefixCaching",
    "--scheduling-policy": "spec.engine.scheduling.policy", "--max-chunk-tokens": "spec.engine.scheduling.chunkTokens",
    "--max-prompt-tokens": "spec.engine.limits.promptTokens", "--max-output-tokens": "spec.engine.limits.outputTokens",
    "--max-queued-requests": "spec.engine.limits.queued", "--max-queued-tokens": "spec.engine.limits.queuedTokens",
    "--max-n": "spec.engine.limits.answers", "--api-key-file": "spec.engine.apiKeySecretRef",
    "--tensor-parallel-size": "spec.resources.accelerator.count", "--nnodes": "spec.engine.nodes",
    "--node-rank": "", "--master-addr": "", "--master-port": "",
    "--tool-call-parser": "spec.engine.toolCallParser", "--drain-timeout": "",
}  # fmt: skip


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
            *((plain("HF_HOME", CACHE_FOLDER),) if spec.model.cache_claim else ()),
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
    shared_flags={SLOTS_FLAG: SLOTS, "--max-num-batched-tokens": TOKENS_PER_STEP},
    slots_flag=SLOTS_FLAG,
    slots=DEFAULT_SLOTS,
    reads_packages=True,
    metrics=OURS,
)
