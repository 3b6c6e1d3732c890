"""vLLM (written for 0.32): its images, its command line, its metrics. Source: `vllm serve --help=all` of that version."""

from __future__ import annotations

import json

from pagefleet_contract.disaggregation import KV_TRANSFER_PARAMS
from pagefleet_contract.engine_metrics import LOWER_FIRST, Engine, EngineMetrics
from pagefleet_contract.engine_options import DEFAULT_DRAFT_TOKENS, MASTER_PORT
from pagefleet_contract.names import ENGINE_PORT
from pagefleet_contract.quantity import amount
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.revision_spec import NEURON, NEURON_CORE, Model, RevisionSpec
from pagefleet_operator.domain.runtimes import kv_events, kv_transfer
from pagefleet_operator.domain.runtimes import launch as common
from pagefleet_operator.domain.runtimes.adapter import SLOTS, TOKENS_PER_STEP, Adapter, Sleep, Split
from pagefleet_operator.domain.runtimes.flags import drain_seconds
from pagefleet_operator.domain.runtimes.launch import Launch
from pagefleet_operator.domain.runtimes.node import INDEX, LEADER, Node, NodeLaunch, shares
from pagefleet_operator.domain.runtimes.uris import path_in_pod
from pagefleet_operator.domain.runtimes.volumes import CHAT_TEMPLATE

VERSION = "v0.32.0"
NEURON_VERSION = "0.24.0"
NEURON_IMAGE = (
    f"public.ecr.aws/neuron/pytorch-inference-vllm-neuronx:{NEURON_VERSION}.1.1.0-neuronx-py313-sdk2.32.0-ubuntu24.04"
)
# By the accelerator's resource name, "" without one. AWS builds the image for Neuron, with an older vLLM.
IMAGES = {
    "": f"docker.io/vllm/vllm-openai-cpu:{VERSION}",
    "nvidia.com/gpu": f"docker.io/vllm/vllm-openai:{VERSION}",
    "amd.com/gpu": f"docker.io/vllm/vllm-openai-rocm:{VERSION}",
    "google.com/tpu": f"docker.io/vllm/vllm-tpu:{VERSION}",
    NEURON: NEURON_IMAGE,
    NEURON_CORE: NEURON_IMAGE,
}
ENVIRONMENT = {
    "": {"VLLM_CPU_OMP_THREADS_BIND": "nobind"},  # a container's cores are the kubelet's to give
    "google.com/tpu": {"PJRT_DEVICE": "TPU"},
    "habana.ai/gaudi": {"PT_HPU_ENABLE_LAZY_COLLECTIVES": "true"},  # collectives inside HPU graphs
}
METHODS = {"draft": "draft_model"}  # of speculation; the other names are ours
SLOTS_FLAG = "--max-num-seqs"
CPU_CACHE_SHARE = 0.3  # of spec.resources.memory, without kvCache.memoryFraction
OWNED = {
    "--max-model-len": "spec.model.maxLength", "--quantization": "spec.model.quantization",
    "--speculative-config": "spec.model.speculation", "--lora-modules": "spec.model.adapters",
    "--enable-lora": "spec.model.adapters", "--max-loras": "spec.model.adapters", "--revision": "spec.model.source",
    "--chat-template": "spec.model.chatTemplate", "--block-size": "spec.engine.kvCache.pageSize",
    "--num-gpu-blocks-override": "spec.engine.kvCache.pages",
    "--gpu-memory-utilization": "spec.engine.kvCache.memoryFraction",
    "--kv-cache-memory-bytes": "spec.engine.kvCache.memoryFraction", "--kv-cache-dtype": "spec.engine.kvCache.dtype",
    "--enable-prefix-caching": "spec.engine.kvCache.prefixCaching",
    "--no-enable-prefix-caching": "spec.engine.kvCache.prefixCaching",
    "--scheduling-policy": "spec.engine.scheduling.policy",
    "--long-prefill-token-threshold": "spec.engine.scheduling.chunkTokens",
    "--override-generation-config": "spec.engine.limits.outputTokens",
    "--max-num-queued-reqs": "spec.engine.limits.queued", "--max-num-queued-tokens": "spec.engine.limits.queuedTokens",
    "--tool-call-parser": "spec.engine.toolCallParser", "--enable-auto-tool-choice": "spec.engine.toolCallParser",
    "--api-key": "spec.engine.apiKeySecretRef", "--shutdown-timeout": "", "--nnodes": "spec.engine.nodes",
    "--pipeline-parallel-size": "spec.engine.pipelineParallelSize", "--node-rank": "", "--master-addr": "",
    "--master-port": "", "--headless": "", "--distributed-executor-backend": "", "--uds": "",
    # Other names of the same flags.
    "--device-memory-utilization": "spec.engine.kvCache.memoryFraction", "--no-enable-lora": "spec.model.adapters",
    "--spec-method": "spec.model.speculation", "--spec-model": "spec.model.speculation", "--spec-tokens": "spec.model.speculation",
    "-q": "spec.model.quantization", "-pp": "spec.engine.pipelineParallelSize", "-n": "spec.engine.nodes", "-r": "",
}  # fmt: skip
METRICS = EngineMetrics(
    waiting="vllm:num_requests_waiting",
    running="vllm:num_requests_running",
    kvUsage="vllm:kv_cache_usage_perc",
    kvPages="vllm:cache_config_info{num_gpu_blocks}",
    tokens="vllm:generation_tokens_total",
    promptTokens="vllm:prompt_tokens_total",
    preemptions="vllm:num_preemptions_total",
    ttft="vllm:time_to_first_token_seconds",
    e2e="vllm:e2e_request_latency_seconds",
    itl="vllm:inter_token_latency_seconds",
    queue="vllm:request_queue_time_seconds",
    finished=("vllm:request_success_total",),
    failed=('vllm:request_success_total{finished_reason="error"}',),
)
# Without the variable the server has no routes of sleep. With it everybody who reaches the server may also call any method of
# its workers (/collective_rpc) and replace their weights. Source: vLLM's documentation, "Security" and "Sleep mode".
SLEEP = Sleep(
    accelerators=("nvidia.com/", "amd.com/"),
    guarded=True,
    flags=("--enable-sleep-mode",),
    variables={"VLLM_SERVER_DEV_MODE": "1"},
    metric='vllm:engine_sleep_state{sleep_state="weights_offloaded"}',
)


def launch(child: Child, _release: str) -> Launch:
    """It drains at SIGTERM (--shutdown-timeout); the pause before lets the last picks of gateways arrive."""
    name = child.spec.accelerator_name
    drain = drain_seconds(child.spec.engine.limits.output_tokens)
    return Launch(
        image=IMAGES.get(name, ""),
        command=("python3", "-m", "vllm.entrypoints.openai.api_server") if name in (NEURON, NEURON_CORE) else (),
        args=(*common.flags({**_model(child), **_device(child.spec), **_engine(child.spec, drain),
                                 kv_events.FLAG: kv_events.config(child), kv_transfer.FLAG: kv_transfer.config(child.spec)}),
              *_adapters(child.spec.model)),
        drain=drain + common.KNOWN_DELAY,
        env=(
            *common.caches(child.spec),
            common.plain("VLLM_NO_USAGE_STATS", "1"),
            *(common.plain(key, value) for key, value in ENVIRONMENT.get(name, {}).items()),
            *common.neuron(child.spec),
            *common.api_key(child.spec, "VLLM_API_KEY"),
            *kv_events.env(child.spec),
            *kv_transfer.env(child.spec),
        ),
        stopping=("sleep", str(common.KNOWN_DELAY)),
        engine=Engine(metrics=METRICS, priority=LOWER_FIRST if child.spec.engine.scheduling.policy == "priority" else ""),
    )  # fmt: skip


def node_launch(spec: RevisionSpec, node: Node) -> NodeLaunch:
    values = {
        "--nnodes": node.count,
        "--node-rank": INDEX,
        "--master-addr": LEADER,
        "--master-port": MASTER_PORT,
        "--distributed-executor-backend": "mp",
        **shares(spec),
        "--headless": node.worker,
    }
    return NodeLaunch(tuple(common.flags(values)), stops_at_once=True)


def _model(child: Child) -> dict[str, object]:
    model = child.spec.model
    return {
        "--model": path_in_pod(model.source, model),
        "--served-model-name": common.served_name(child),
        "--host": child.address,
        "--port": ENGINE_PORT,
        "--max-model-len": model.max_length,
        "--quantization": None if model.quantization == "none" else model.quantization,
        "--speculative-config": _speculation(model),
        "--chat-template": CHAT_TEMPLATE.path if model.chat_template else None,
    }


def _speculation(model: Model) -> str | None:
    speculation = model.drafting
    if not speculation:
        return None
    config = {"method": METHODS.get(speculation.method, speculation.method)}
    if speculation.model:
        config["model"] = path_in_pod(speculation.model, model)
    return json.dumps(
        {**config, "num_speculative_tokens": speculation.tokens or DEFAULT_DRAFT_TOKENS}, separators=(",", ":")
    )


def _device(spec: RevisionSpec) -> dict[str, object]:
    """On the CPU the cache's bytes are said outright: a fraction would be of the node's memory, not of the pod's. Devices of
    Neuron have several cores: how many ranks they make is for engine.args. Of cores, each is a rank."""
    fraction = spec.engine.kv_cache.memory_fraction
    if not spec.accelerator_name:
        memory = amount(spec.resources.memory)
        return {"--kv-cache-memory-bytes": int(memory * (fraction or CPU_CACHE_SHARE))}
    shared = {flag: size for flag, size in shares(spec).items() if size > 1}
    if spec.accelerator_name == NEURON:
        shared.pop("--tensor-parallel-size", None)
    return {**shared, "--gpu-memory-utilization": fraction}


def _engine(spec: RevisionSpec, drain: int) -> dict[str, object]:
    cache, scheduling, limits = spec.engine.kv_cache, spec.engine.scheduling, spec.engine.limits
    longest, parser = limits.output_tokens, spec.engine.tool_call_parser
    return {
        "--block-size": cache.page_size,
        "--num-gpu-blocks-override": cache.pages,
        "--kv-cache-dtype": cache.dtype,
        "--enable-prefix-caching": cache.prefix_caching,
        "--no-enable-prefix-caching": cache.prefix_caching is False,
        "--scheduling-policy": scheduling.policy,
        "--max-num-seqs": scheduling.max_sequences,
        "--max-num-batched-tokens": scheduling.tokens_per_step,
        "--long-prefill-token-threshold": scheduling.chunk_tokens,
        "--override-generation-config": json.dumps({"max_new_tokens": longest}) if longest else None,
        "--max-num-queued-reqs": limits.queued,
        "--max-num-queued-tokens": limits.queued_tokens,
        "--enable-auto-tool-choice": parser is not None,
        "--tool-call-parser": parser,
        "--shutdown-timeout": drain,
    }


def _adapters(model: Model) -> list[str]:
    if not model.adapters:
        return []
    modules = [_module(adapter.name, path_in_pod(adapter.source, model)) for adapter in model.adapters]
    return ["--enable-lora", f"--max-loras={len(modules)}", "--lora-modules", *modules]


def _module(name: str, path: str) -> str:
    """NAME=PATH. vLLM splits it at every =, and reads one with a comma as JSON, so such a path comes as JSON."""
    if "=" in path or "," in path:
        return json.dumps({"name": name, "path": path}, separators=(",", ":"))
    return f"{name}={path}"


ADAPTER = Adapter(
    name="vllm",
    launch=launch,
    node_launch=node_launch,
    images=IMAGES,
    metrics=METRICS,
    splits_layers=True,
    owned_flags=common.COMMON_FLAGS | OWNED,
    shared_flags={
        SLOTS_FLAG: SLOTS,
        "--max-num-batched-tokens": TOKENS_PER_STEP,
        kv_events.FLAG: kv_events.FIELD,
        kv_transfer.FLAG: kv_transfer.FIELD,
    },
    slots_flag=SLOTS_FLAG,
    unsupported={
        "model.quantization": ("int8",),
        "engine.kvCache.dtype": ("float32",),
        "engine.limits.promptTokens": (),
        "engine.limits.answers": (),
    },
    sleep=SLEEP,
    split=Split(KV_TRANSFER_PARAMS, kv_transfer.of_prefill),
)
