"""What the InferenceService and our engine's command line share: the field of `.spec` behind each flag, values and bounds."""

from __future__ import annotations

from collections.abc import Mapping

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
SHARED_FLAGS = (SLOTS_FLAG, STEP_TOKENS_FLAG)  # spec.engine.args may have these instead of their field
DEFAULT_SLOTS = 64  # sequences of a batch, without the flag and without a GPU

PAGE_SIZES = (16, 32, 64, 128, 256)  # tokens per KV page
DEFAULT_PAGE_SIZE = PAGE_SIZES[0]
# The smallest KV cache that answers a short chat: templates take about 30 tokens before the first word of a user.
MIN_CACHE_TOKENS = 64

SPECULATION_METHODS = ("ngram", "draft", "none")
MAX_DRAFT_TOKENS, DEFAULT_DRAFT_TOKENS = 16, 4  # of one step

MAX_ADAPTERS = 16  # LoRA adapters loaded at the same time
ADAPTER_NAME = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}"  # to be matched in full

MAX_ANSWERS = 16  # to one prompt: `n`

MAX_NODES, MAX_GPUS_PER_NODE = 16, 8  # of one replica
MASTER_PORT = 29500  # on the first pod of several: it waits there for the others
