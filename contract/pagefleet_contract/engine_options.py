"""What the InferenceService and our engine's command line share: the field of `.spec` behind each flag, values and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Every flag that the operator writes, and the field of `.spec` that it writes it from; "" where no field sets it.
FLAG_FIELDS: Mapping[str, str] = {
    "--model": "model.source",
    "--served-model-name": "model.servedName",
    "--host": "",
    "--port": "",
    "--max-model-len": "model.maxLength",
    "--quantization": "model.quantization",
    "--speculation": "model.speculation.method",
    "--speculation-tokens": "model.speculation.tokens",
    "--speculation-model": "model.speculation.model",
    "--lora-adapter": "model.adapters",
    "--chat-template": "model.chatTemplate",
    "--page-size": "engine.kvCache.pageSize",
    "--num-pages": "engine.kvCache.pages",
    "--kv-memory-fraction": "engine.kvCache.memoryFraction",
    "--kv-cache-dtype": "engine.kvCache.dtype",
    "--no-prefix-caching": "engine.kvCache.prefixCaching",
    "--kv-events-config": "engine.kvCache.events",
    "--scheduling-policy": "engine.scheduling.policy",
    "--max-num-seqs": "engine.scheduling.maxSequences",
    "--max-num-batched-tokens": "engine.scheduling.tokensPerStep",
    "--max-chunk-tokens": "engine.scheduling.chunkTokens",
    "--max-prompt-tokens": "engine.limits.promptTokens",
    "--max-output-tokens": "engine.limits.outputTokens",
    "--max-queued-requests": "engine.limits.queued",
    "--max-queued-tokens": "engine.limits.queuedTokens",
    "--max-n": "engine.limits.answers",
    "--api-key-file": "engine.apiKeySecretRef",
    "--tool-call-parser": "engine.toolCallParser",
    "--tensor-parallel-size": "resources.accelerator.count",
    "--nnodes": "engine.nodes",
    "--node-rank": "",
    "--master-addr": "",
    "--master-port": "",
    "--drain-timeout": "",
}
SLOTS_FLAG, STEP_TOKENS_FLAG = "--max-num-seqs", "--max-num-batched-tokens"
EVENTS_FLAG = "--kv-events-config"
SHARED_FLAGS = (SLOTS_FLAG, STEP_TOKENS_FLAG, EVENTS_FLAG)  # spec.engine.args may have these instead of their field

PAGE_SIZES = (16, 32, 64, 128, 256)  # tokens per KV page
DEFAULT_PAGE_SIZE = PAGE_SIZES[0]
# The smallest KV cache that answers a short chat: templates take about 30 tokens before the first word of a user.
MIN_CACHE_TOKENS = 64

HEAD = "eagle3"  # the method of speculation by a head that reads the served model's states
SPECULATION_METHODS = ("ngram", "draft", HEAD, "none")
MAX_DRAFT_TOKENS, DEFAULT_DRAFT_TOKENS = 16, 4  # of one step


@dataclass(frozen=True)
class BatchSizes:
    """Our engine's sizes of a step when none are given: sequences, tokens, and tokens of one long prompt."""

    sequences: int
    tokens: int
    chunk_tokens: int


# By device. A GPU would be idle with the CPU's sizes.
BATCH_SIZES: Mapping[str, BatchSizes] = {"cpu": BatchSizes(64, 256, 128), "cuda": BatchSizes(256, 8192, 2048)}

MAX_ADAPTERS = 16  # LoRA adapters loaded at the same time
ADAPTER_NAME = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}"  # to be matched in full

MAX_ANSWERS = 16  # to one prompt: `n`

MAX_NODES, MAX_GPUS_PER_NODE = 16, 8  # of one replica
MASTER_PORT = 29500  # on the first pod of several: it waits there for the others
