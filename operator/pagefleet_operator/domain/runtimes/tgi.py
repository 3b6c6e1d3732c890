"""Hugging Face's text-generation-inference (written for 3.3.6): its images, its command line, its metrics. Source: the
launcher and the router of that version (tests/data/released). It has not been run here: docs/runtimes.md says what that
means."""

from __future__ import annotations

from pagefleet_contract.engine_metrics import Engine, EngineMetrics
from pagefleet_contract.engine_options import DEFAULT_DRAFT_TOKENS
from pagefleet_contract.names import ENGINE_PORT
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.revision_spec import NEURON, NEURON_CORE
from pagefleet_operator.domain.base.revision_spec import Engine as EngineSpec
from pagefleet_operator.domain.runtimes import launch as common
from pagefleet_operator.domain.runtimes.adapter import HEADS, SLOTS, TOKENS_PER_STEP, Adapter
from pagefleet_operator.domain.runtimes.flags import drain_seconds
from pagefleet_operator.domain.runtimes.launch import Launch, flag_name
from pagefleet_operator.domain.runtimes.uris import path_in_pod

IMAGE = "ghcr.io/huggingface/text-generation-inference:3.3.6"
IMAGES = {
    "": f"{IMAGE}-intel-cpu",
    "nvidia.com/gpu": IMAGE,
    "amd.com/gpu": f"{IMAGE}-rocm",
    "habana.ai/gaudi": f"{IMAGE}-gaudi",
    NEURON: f"{IMAGE}-neuron",
    NEURON_CORE: f"{IMAGE}-neuron",
}
ENVIRONMENT = {"habana.ai/gaudi": {"PT_HPU_ENABLE_LAZY_COLLECTIVES": "true"}}
SLOTS_FLAG = "--max-batch-size"
MOST_FLAG, MOST_VARIABLE = "--max-concurrent-requests", "MAX_CONCURRENT_REQUESTS"
WAITING = 128  # requests that may wait beside those that run; alone it is TGI's own bound of both together
KV_DTYPES = {"auto": None, "fp8": "fp8_e4m3fn"}
QUANTIZE = {"none": None, "int8": "eetq", "fp8": "fp8", "awq": "awq"}
OWNED = {
    "--model-id": "spec.model.source", "--revision": "spec.model.source", "--hostname": "",
    "--max-total-tokens": "spec.model.maxLength", "--quantize": "spec.model.quantization",
    "--speculate": "spec.model.speculation.tokens", "--lora-adapters": "spec.model.adapters",
    "--cuda-memory-fraction": "spec.engine.kvCache.memoryFraction",
    "--max-input-tokens": "spec.engine.limits.promptTokens", "--num-shard": "spec.resources.accelerator.count",
    "--kv-cache-dtype": "spec.engine.kvCache.dtype", "--api-key": "spec.engine.apiKeySecretRef", "--graceful-termination-timeout": "",
    "--max-input-length": "spec.engine.limits.promptTokens", "-p": "",  # other names of flags
}  # fmt: skip
# It tells neither its KV pages nor times to first token.
METRICS = EngineMetrics(
    waiting="tgi_queue_size",
    running="tgi_batch_current_size",
    tokens="tgi_request_generated_tokens_sum",
    promptTokens="tgi_request_input_length_sum",
    e2e="tgi_request_duration",
    queue="tgi_request_queue_duration",
    finished=("tgi_request_success", "tgi_request_failure"),
    failed=("tgi_request_failure",),
)


def launch(child: Child, _release: str) -> Launch:
    """At SIGTERM its router serves what it has accepted, for --graceful-termination-timeout seconds at most."""
    name = child.spec.accelerator_name
    cached = child.spec.engine.kv_cache.prefix_caching
    switched = [] if cached is None else [common.plain("PREFIX_CACHING", "1" if cached else "0")]
    return Launch(
        image=IMAGES.get(name, ""),
        args=tuple(common.flags(_flags(child))),
        drain=drain_seconds() + common.KNOWN_DELAY,
        env=(
            *common.caches(child.spec),
            common.plain("HUGGINGFACE_HUB_CACHE", f"{common.TEMPORARY}/huggingface"),
            *switched,
            *(common.plain(key, value) for key, value in ENVIRONMENT.get(name, {}).items()),
            *common.neuron(child.spec),
            *([common.plain("HF_NUM_CORES", str(child.spec.accelerators))] if name == NEURON_CORE else []),
            *common.api_key(child.spec, "API_KEY"),
        ),
        stopping=("sleep", str(common.KNOWN_DELAY)),
        engine=Engine(metrics=METRICS),
    )


def _flags(child: Child) -> dict[str, object]:
    """It takes any `model` of a request for its own, so it needs no served name."""
    spec, model, engine = child.spec, child.spec.model, child.spec.engine
    sharded = spec.accelerators > 1 and spec.accelerator_name not in (NEURON, NEURON_CORE)
    adapters = [f"{adapter.name}={path_in_pod(adapter.source, model)}" for adapter in model.adapters]
    return {
        "--model-id": path_in_pod(model.source, model),
        "--hostname": child.address,
        "--port": ENGINE_PORT,
        "--num-shard": spec.accelerators if sharded else None,
        "--max-total-tokens": model.max_length,
        "--max-input-tokens": engine.limits.prompt_tokens,
        "--quantize": QUANTIZE[model.quantization or "none"],
        "--speculate": (model.drafting.tokens or DEFAULT_DRAFT_TOKENS) if model.drafting else None,
        "--cuda-memory-fraction": engine.kv_cache.memory_fraction,
        "--kv-cache-dtype": KV_DTYPES[engine.kv_cache.dtype or "auto"],
        "--max-batch-size": engine.scheduling.max_sequences,
        MOST_FLAG: _most(engine),
        "--max-batch-prefill-tokens": engine.scheduling.tokens_per_step,
        "--lora-adapters": ",".join(adapters) or None,
        "--graceful-termination-timeout": drain_seconds(),
    }


def _most(engine: EngineSpec) -> int | None:
    """The requests that run or wait, beyond which it answers 429. None where it, or the spec's own flag or variable, says so."""
    slots = engine.scheduling.max_sequences
    told = [flag_name(one) for one in engine.args] + [one["name"] for one in engine.env]
    return None if slots is None or MOST_FLAG in told or MOST_VARIABLE in told else slots + WAITING


ADAPTER = Adapter(
    name="tgi",
    launch=launch,
    images=IMAGES,
    metrics=METRICS,
    several_nodes=False,
    owned_flags=common.COMMON_FLAGS | OWNED,
    shared_flags={SLOTS_FLAG: SLOTS, "--max-batch-prefill-tokens": TOKENS_PER_STEP},
    slots_flag=SLOTS_FLAG,
    unsupported={
        "engine.disaggregation": (),
        "engine.kvCache.events": (),
        "model.speculation.method": ("draft", *HEADS),
        "model.chatTemplate": (),
        "engine.kvCache.pageSize": (),
        "engine.kvCache.pages": (),
        "engine.kvCache.dtype": ("float32", "float16", "bfloat16"),
        "engine.scheduling.policy": ("priority",),
        "engine.scheduling.chunkTokens": (),
        "engine.limits.outputTokens": (),
        "engine.limits.queued": (),
        "engine.limits.queuedTokens": (),
        "engine.limits.answers": (),
        "engine.toolCallParser": (),
    },
)
