"""SGLang (written for 0.5.23): its image, its command line, its metrics. Source: the argument parser and the metrics of that
version's wheel (tests/data/released). It has not been run here: docs/runtimes.md says what that means."""

from __future__ import annotations

from collections.abc import Iterable

from pagefleet_contract.disaggregation import BOOTSTRAP
from pagefleet_contract.engine_metrics import HIGHER_FIRST, Engine, EngineMetrics
from pagefleet_contract.engine_options import DEFAULT_DRAFT_TOKENS, DEFAULT_PAGE_SIZE, MASTER_PORT
from pagefleet_contract.names import ENGINE_PORT, KV_TRANSFER_PORT
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.revision_spec import Model, RevisionSpec
from pagefleet_operator.domain.runtimes import launch as common
from pagefleet_operator.domain.runtimes.adapter import SLOTS, TOKENS_PER_STEP, Adapter, Split
from pagefleet_operator.domain.runtimes.flags import drain_seconds
from pagefleet_operator.domain.runtimes.launch import Launch
from pagefleet_operator.domain.runtimes.node import INDEX, LEADER, Node, NodeLaunch, shares
from pagefleet_operator.domain.runtimes.uris import path_in_pod
from pagefleet_operator.domain.runtimes.volumes import CHAT_TEMPLATE

# Tags for other accelerators name their driver's version and card: engine.image has to say which.
IMAGES = {"nvidia.com/gpu": "docker.io/lmsysorg/sglang:v0.5.23"}
SLOTS_FLAG = "--max-running-requests"
MODE, DECODE, PREFILL = "--disaggregation-mode", "decode", "prefill"
PAGE = DEFAULT_PAGE_SIZE  # of kvCache.pages without pageSize, as with our engine
KV_DTYPES = {"fp8": "fp8_e4m3"}  # other names are ours
ALGORITHMS = {"draft": "STANDALONE", "eagle": "EAGLE", "eagle3": "EAGLE3"}
PARSERS = {
    "hermes": "hermes", "llama3_json": "llama3", "mistral": "mistral", "qwen3_coder": "qwen3_coder",
    "deepseek_v3": "deepseekv3", "openai": "gpt-oss", "pythonic": "pythonic",
}  # fmt: skip
OWNED = {
    "--model-path": "spec.model.source", "--revision": "spec.model.source",
    "--context-length": "spec.model.maxLength", "--quantization": "spec.model.quantization",
    "--speculative-algorithm": "spec.model.speculation.method",
    "--speculative-num-draft-tokens": "spec.model.speculation.tokens",
    "--speculative-num-steps": "spec.model.speculation.tokens",
    "--speculative-eagle-topk": "", "--speculative-ngram-max-bfs-breadth": "",
    "--speculative-draft-model-path": "spec.model.speculation.model", "--lora-paths": "spec.model.adapters",
    "--enable-lora": "spec.model.adapters", "--max-loras-per-batch": "spec.model.adapters",
    "--chat-template": "spec.model.chatTemplate", "--page-size": "spec.engine.kvCache.pageSize",
    "--max-total-tokens": "spec.engine.kvCache.pages", "--mem-fraction-static": "spec.engine.kvCache.memoryFraction",
    "--kv-cache-dtype": "spec.engine.kvCache.dtype", "--disable-radix-cache": "spec.engine.kvCache.prefixCaching",
    "--schedule-policy": "spec.engine.scheduling.policy",
    "--enable-priority-scheduling": "spec.engine.scheduling.policy",
    "--chunked-prefill-size": "spec.engine.scheduling.chunkTokens",
    "--max-queued-requests": "spec.engine.limits.queued", "--tool-call-parser": "spec.engine.toolCallParser",
    "--api-key": "spec.engine.apiKeySecretRef", "--enable-metrics": "", "--disaggregation-mode": "spec.engine.disaggregation", "--disaggregation-bootstrap-port": "", "--nnodes": "spec.engine.nodes",
    "--pipeline-parallel-size": "spec.engine.pipelineParallelSize", "--node-rank": "", "--dist-init-addr": "",
    # Other names of the same flags.
    "--speculative-draft-model": "spec.model.speculation.model", "--pp-size": "spec.engine.pipelineParallelSize",
    "--nccl-init-addr": "",
}  # fmt: skip
METRICS = EngineMetrics(
    waiting="sglang:num_queue_reqs",
    running="sglang:num_running_reqs",
    kvUsage="sglang:token_usage",
    kvPages="sglang:max_total_num_tokens",
    tokens="sglang:generation_tokens_total",
    promptTokens="sglang:prompt_tokens_total",
    preemptions="sglang:num_retracted_requests_total",
    ttft="sglang:time_to_first_token_seconds",
    e2e="sglang:e2e_request_latency_seconds",
    itl="sglang:inter_token_latency_seconds",
    queue="sglang:queue_time_seconds",
    finished=("sglang:num_requests_total",),
)


def launch(child: Child, _release: str) -> Launch:
    """At SIGTERM it serves what it has accepted to the end; the grace period bounds it."""
    name = child.spec.accelerator_name
    keyed = child.spec.engine.api_key is not None
    written = common.flags({**_model(child), **_engine(child.spec), **_disaggregation(child.spec)})
    return Launch(
        image=IMAGES.get(name, ""),
        command=("python3", "-m", "sglang.launch_server"),
        # It has no variable for the key: the kubelet puts ours into the argument.
        args=(*written, *(["--api-key=$(PAGEFLEET_API_KEY)"] if keyed else []), *_adapters(child.spec.model)),
        drain=drain_seconds() + common.KNOWN_DELAY,
        env=(
            *common.caches(child.spec),
            *common.api_key(child.spec, "PAGEFLEET_API_KEY"),
            *([common.pod_ip("SGLANG_HOST_IP")] if child.spec.engine.disaggregation else []),
        ),
        stopping=("sleep", str(common.KNOWN_DELAY)),
        engine=Engine(
            metrics=METRICS, priority=HIGHER_FIRST if child.spec.engine.scheduling.policy == "priority" else ""
        ),
    )


def node_launch(spec: RevisionSpec, node: Node) -> NodeLaunch:
    values = {
        "--nnodes": node.count,
        "--node-rank": INDEX,
        "--dist-init-addr": f"{LEADER}:{MASTER_PORT}",
        **shares(spec),
    }
    return NodeLaunch(tuple(common.flags(values)), stops_at_once=True)


def _model(child: Child) -> dict[str, object]:
    spec, model = child.spec, child.spec.model
    return {
        "--model-path": path_in_pod(model.source, model),
        "--served-model-name": common.served_name(child),
        "--host": child.address,
        "--port": ENGINE_PORT,
        "--enable-metrics": True,
        "--device": None if spec.accelerator_name else "cpu",
        **{flag: size for flag, size in shares(spec).items() if size > 1},
        "--context-length": model.max_length,
        "--quantization": None if model.quantization == "none" else model.quantization,
        **_speculation(model),
        "--chat-template": CHAT_TEMPLATE.path if model.chat_template else None,
    }


def _speculation(model: Model) -> dict[str, object]:
    """A chain of draft tokens, not a tree, as with our engine and vLLM. Of a model's draft tokens SGLang counts the token before
    the chain as well, and it wants all three numbers or none."""
    speculation = model.drafting
    if not speculation:
        return {}
    tokens = speculation.tokens or DEFAULT_DRAFT_TOKENS
    if speculation.method not in ALGORITHMS:
        return {
            "--speculative-algorithm": "NGRAM",
            "--speculative-ngram-max-bfs-breadth": 1,
            "--speculative-num-draft-tokens": tokens,
        }
    return {
        "--speculative-algorithm": ALGORITHMS[speculation.method],
        "--speculative-draft-model-path": path_in_pod(speculation.model, model),
        "--speculative-num-steps": tokens,
        "--speculative-eagle-topk": 1,
        "--speculative-num-draft-tokens": tokens + 1,
    }


def _engine(spec: RevisionSpec) -> dict[str, object]:
    cache, scheduling = spec.engine.kv_cache, spec.engine.scheduling
    parser, page = spec.engine.tool_call_parser, cache.page_size or (PAGE if cache.pages else None)
    return {
        "--page-size": page,
        "--max-total-tokens": cache.pages * page if cache.pages and page else None,
        "--mem-fraction-static": cache.memory_fraction,
        "--kv-cache-dtype": KV_DTYPES.get(cache.dtype or "", cache.dtype),
        "--disable-radix-cache": cache.prefix_caching is False,
        "--schedule-policy": "fcfs" if scheduling.policy == "fcfs" else None,
        "--enable-priority-scheduling": scheduling.policy == "priority",
        "--max-running-requests": scheduling.max_sequences,
        "--max-prefill-tokens": scheduling.tokens_per_step,
        "--chunked-prefill-size": scheduling.chunk_tokens,
        "--max-queued-requests": spec.engine.limits.queued,
        "--tool-call-parser": PARSERS[parser] if parser else None,
    }


def _disaggregation(spec: RevisionSpec) -> dict[str, object]:
    """A decode pod's flags. Engines of both kinds meet at the bootstrap server of the prefill pod; NIXL chooses between RDMA, NVLink and
    TCP, where SGLang's own default (mooncake) needs RDMA. engine.args may name another backend."""
    if spec.engine.disaggregation is None:
        return {}
    return {
        MODE: DECODE,
        "--disaggregation-transfer-backend": "nixl",
        "--disaggregation-bootstrap-port": KV_TRANSFER_PORT,
    }


def _of_prefill(arguments: Iterable[str]) -> list[str]:
    return [f"{MODE}={PREFILL}" if one == f"{MODE}={DECODE}" else one for one in arguments]


def _adapters(model: Model) -> list[str]:
    """Among the adapters of a batch SGLang counts the model itself, for requests without one."""
    if not model.adapters:
        return []
    paths = [f"{adapter.name}={path_in_pod(adapter.source, model)}" for adapter in model.adapters]
    return ["--enable-lora", f"--max-loras-per-batch={len(paths) + 1}", "--lora-paths", *paths]


ADAPTER = Adapter(
    name="sglang",
    launch=launch,
    node_launch=node_launch,
    images=IMAGES,
    metrics=METRICS,
    page_tokens=1,  # it counts the tokens of its cache, whatever the size of a page
    splits_layers=True,
    owned_flags=common.COMMON_FLAGS | OWNED,
    shared_flags={SLOTS_FLAG: SLOTS, "--max-prefill-tokens": TOKENS_PER_STEP},
    slots_flag=SLOTS_FLAG,
    unsupported={
        "engine.kvCache.events": (),
        "model.quantization": ("int8",),
        "engine.kvCache.dtype": ("float32", "float16"),
        "engine.limits.promptTokens": (),
        "engine.limits.outputTokens": (),
        "engine.limits.queuedTokens": (),
        "engine.limits.answers": (),
        "engine.disaggregation.minPromptTokens": (),
    },
    split=Split(BOOTSTRAP, _of_prefill, computes_all=True),
)
