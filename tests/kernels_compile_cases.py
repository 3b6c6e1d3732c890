"""What `kernels_compile.py` compiles: a call of each wrapper with the shapes and dtypes of a real model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from pagefleet_kernels.paged_attention import paged_attention_triton

BF16, FP16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn


def attention(new: int, page: int, dim: int, kv_dtype: torch.dtype = BF16, **options: Any) -> None:
    heads, kv_heads, sequences = 16, 4, 4
    dtype = torch.float32 if kv_dtype is torch.float32 else BF16
    cache = torch.zeros(8, page, kv_heads, dim, dtype=kv_dtype)
    starts = torch.arange(sequences + 1, dtype=torch.int32) * new
    tables = torch.zeros(sequences, 256, dtype=torch.int32)
    lengths = torch.full((sequences,), 512, dtype=torch.int32)
    q = torch.zeros(sequences * new, heads, dim, dtype=dtype)
    paged_attention_triton(q, cache, cache, tables, starts, lengths, 0.1, new, **options)


CASES: dict[str, Callable[[], object]] = {
    "decode": partial(attention, 1, 16, 128, splits=4),
    "decode fp8": partial(attention, 1, 64, 128, FP8, splits=4),
    "decode fp32": partial(attention, 1, 16, 64, torch.float32, splits=1),
    "decode window cap": partial(attention, 1, 16, 256, window=1024, soft_cap=30.0),
    "prefill": partial(attention, 512, 64, 128, splits=1),
    "prefill 80": partial(attention, 512, 16, 80, splits=1),
    "prefill fp8": partial(attention, 512, 16, 128, FP8, splits=1),
    "mixed": partial(attention, 8, 16, 64),
}
