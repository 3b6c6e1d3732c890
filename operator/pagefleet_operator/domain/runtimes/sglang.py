"""SGLang (written for 0.5): its image, its command line, its metrics. Sources: docs.sglang.io, server arguments and
production metrics. It has not been run here: docs/runtimes.md says what that means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_contract.engine_metrics import Engine, EngineMetrics
from pagefleet_contract.engine_options import DEFAULT_PAGE_SIZE, MASTER_PORT
from pagefleet_contract.names import ENGINE_PORT
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.runtime import guessing
from pagefleet_operator.domain.runtimes import launch as common
from pagefleet_operator.domain.runtimes.adapter import SLOTS, TOKENS_PER_STEP, Adapter
from pagefleet_operator.domain.runtimes.flags import drain_seconds
from pagefleet_operator.domain.runtimes.launch import Launch
from pagefleet_operator.domain.runtimes.node import INDEX, LEADER, Node, NodeLaunch, shares
from pagefleet_operator.domain.runtimes.uris import path_in_pod
from pagefleet_operator.domain.runtimes.volumes import CHAT_TEMPLATE

# Tags for other accelerators name their driver's version and card: engine.image has to say which.
IMAGES = {"nvidia.com/gpu": "docker.io/lmsysorg/sglang:v0.5.23"}
SLOTS_FLAG = "--max-running-requests"
PAGE = DEFAULT_PAGE_SIZE  # of kvCache.pages without pageSize, as with our engine
PARSERS = {"hermes": "qwen25", "llama3_json": "llama3"}  # qwen25 reads Hermes' <tool_call> form
OWNED = {
    "--model-path": "spec.model.source", "--revision": "spec.model.source",
    "--context-length": "spec.model.maxLength", "--quantization": "spec.model.quantization",
    "--speculative-algorithm": "spec.model.speculation.method",
    "--speculative-num-draft-tokens": "spec.model.speculation.tokens",
    "--speculative-draft-model-path": "spec.model.speculation.model", "--lora-paths": "spec.model.adapters",
    "--enable-lora": "spec.model.adapters", "--max-loras-per-batch": "spec.model.adapters",
    "--chat-template": "spec.model.chatTemplate", "--page-size": "spec.engine.kvCache.pageSize",
    "--max-total-tokens": "spec.engine.kvCache.pages", "--mem-fraction-static": "spec.engine.kvCache.memoryFraction",
    "--kv-cache-dtype": "spec.engine.kvCache.dtype", "--disable-radix-cache": "spec.engine.kvCache.prefixCaching",
    "--schedule-policy": "spec.engine.scheduling.policy",
    "--enable-priority-scheduling": "spec.engine.scheduling.policy",
    "--chunked-prefill-size": "spec.engine.scheduling.chunkTokens",
    "--max-queued-requests": "spec.engine.limits.queued", "--tool-call-parser": "spec.engine.toolCallParser",
    "--api-key": "spec.engine.apiKeySecretRef", "--enable-metrics": "", "--nnodes": "spec.engine.nodes",
    "--pipeline-parallel-size": "spec.engine.pipelineParallelSize", "--node-rank": "", "--dist-init-addr": "",
}  # fmt: skip
METRICS = EngineMetrics(
    waiting="sglang:num_queue_reqs",
    running="sglang:num_running_reqs",
    kvUsage="sglang:token_usage",
    kvPages="sglang:max_total_num_tokens",
    tokens="sglang:generation_tokens_total",
    ttft="sglang:time_to_first_token_seconds",
    e2e="sglang:e2e_request_latency_seconds",
    itl="sglang:inter_token_latency_seconds",
    queue="sglang:queue_time_seconds",
    finished=("sglang:num_requests_total",),
)


def launch(child: Child, _release: str) -> Launch:
    """At SIGTERM it serves what it has accepted to the end; the grace period bounds it."""
    name, _ = common.accelerator(child.snapshot)
    keyed = bool((child.snapshot.get("engine") or {}).get("apiKeySecretRef"))
    written = common.flags({**_model(child), **_engine(child.snapshot)})
    return Launch(
        image=IMAGES.get(name, ""),
        command=("python3", "-m", "sglang.launch_server"),
        # It has no variable for the key: the kubelet puts ours into the argument.
        args=(*written, *(["--api-key=$(PAGEFLEET_API_KEY)"] if keyed else []), *_adapters(child.snapshot["model"])),
        drain=drain_seconds({}) + common.KNOWN_DELAY,
        env=(*common.caches(child.snapshot), *common.api_key(child.snapshot, "PAGEFLEET_API_KEY")),
        stopping=("sleep", str(common.KNOWN_DELAY)),
        engine=Engine(metrics=METRICS),
    )


def node_launch(snapshot: Mapping[str, Any], node: Node) -> NodeLaunch:
    values = {
        "--nnodes": node.count,
        "--node-rank": INDEX,
        "--dist-init-addr": f"{LEADER}:{MASTER_PORT}",
        **shares(snapshot),
    }
    return NodeLaunch(tuple(common.flags(values)), stops_at_once=True)


def _model(child: Child) -> dict[str, object]:
    model: Mapping[str, Any] = child.snapshot["model"]
    quantization, (name, _) = model.get("quantization", "none"), common.accelerator(child.snapshot)
    return {
        "--model-path": common.model_path(model["source"]),
        "--revision": common.hub_revision(model["source"]),
        "--served-model-name": common.served_name(child),
        "--host": "0.0.0.0",
        "--port": ENGINE_PORT,
        "--enable-metrics": True,
        "--device": None if name else "cpu",
        **{flag: size for flag, size in shares(child.snapshot).items() if size > 1},
        "--context-length": model.get("maxLength"),
        "--quantization": None if quantization == "none" else quantization,
        **_speculation(guessing(child.snapshot)),
        "--chat-template": CHAT_TEMPLATE.path if "chatTemplate" in model else None,
    }


def _speculation(speculation: Mapping[str, Any]) -> dict[str, object]:
    if not speculation:
        return {}
    draft = speculation["method"] == "draft"
    return {
        "--speculative-algorithm": "STANDALONE" if draft else "NGRAM",
        "--speculative-draft-model-path": common.model_path(speculation["model"]) if draft else None,
        "--speculative-num-draft-tokens": speculation.get("tokens", 4),
    }


def _engine(snapshot: Mapping[str, Any]) -> dict[str, object]:
    cache, scheduling = common.engine_part(snapshot, "kvCache"), common.engine_part(snapshot, "scheduling")
    parser, pages = (snapshot.get("engine") or {}).get("toolCallParser"), cache.get("pages")
    page = cache.get("pageSize", PAGE if pages else None)
    return {
        "--page-size": page,
        "--max-total-tokens": pages * page if pages else None,
        "--mem-fraction-static": cache.get("memoryFraction"),
        "--kv-cache-dtype": cache.get("dtype"),
        "--disable-radix-cache": cache.get("prefixCaching") is False,
        "--schedule-policy": "fcfs" if scheduling.get("policy") == "fcfs" else None,
        "--enable-priority-scheduling": scheduling.get("policy") == "priority",
        "--max-running-requests": scheduling.get("maxSequences"),
        "--max-prefill-tokens": scheduling.get("tokensPerStep"),
        "--chunked-prefill-size": scheduling.get("chunkTokens"),
        "--max-queued-requests": common.engine_part(snapshot, "limits").get("queued"),
        "--tool-call-parser": PARSERS[parser] if parser else None,
    }


def _adapters(model: Mapping[str, Any]) -> list[str]:
    adapters = model.get("adapters") or ()
    if not adapters:
        return []
    paths = [f"{adapter['name']}={path_in_pod(adapter['source'])}" for adapter in adapters]
    return ["--enable-lora", f"--max-loras-per-batch={len(paths)}", "--lora-paths", *paths]


ADAPTER = Adapter(
    name="sglang",
    launch=launch,
    node_launch=node_launch,
    images=IMAGES,
    metrics=METRICS,
    splits_layers=True,
    owned_flags=common.COMMON_FLAGS | OWNED,
    shared_flags={SLOTS_FLAG: SLOTS, "--max-prefill-tokens": TOKENS_PER_STEP},
    slots_flag=SLOTS_FLAG,
    unsupported={
        "model.quantization": ("int8",),
        "engine.kvCache.dtype": ("float32", "float16"),
        "engine.limits.promptTokens": (),
        "engine.limits.outputTokens": (),
        "engine.limits.queuedTokens": (),
        "engine.limits.answers": (),
    },
)
