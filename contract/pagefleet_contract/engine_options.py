"""The values and bounds of our engine's flags that the InferenceService offers too: one for both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PAGE_SIZES = (16, 32, 64, 128, 256)  # tokens per KV page
DEFAULT_PAGE_SIZE = PAGE_SIZES[0]
# The smallest KV cache that answers a short chat: templates take about 30 tokens before the first word of a user.
MIN_CACHE_TOKENS = 64

SPECULATION_METHODS = ("ngram", "draft", "none")
MAX_DRAFT_TOKENS, DEFAULT_DRAFT_TOKENS = 16, 4  # of one step


@dataclass(frozen=True)
class BatchSizes:
    """Our engine's sizes of a step when none are given: sequences, tokens, and tokens of one long prompt."""

    sequences: int
    tokens: int
    chunk_tokens: int


# By device. A GPU would be idle with the CPU's sizes.
BATCH_SIZES: Mapping[str, BatchSizes] = {"cpu": BatchSizes(64, 512, 128), "cuda": BatchSizes(256, 8192, 2048)}

MAX_ADAPTERS = 16  # LoRA adapters loaded at the same time
ADAPTER_NAME = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}"  # to be matched in full

MAX_ANSWERS = 16  # to one prompt: `n`

MAX_NODES, MAX_GPUS_PER_NODE = 16, 8  # of one replica
MASTER_PORT = 29500  # on the first pod of several: it waits there for the others
