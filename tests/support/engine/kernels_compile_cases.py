"""The cases of `kernels_compile.py`: a call of each wrapper with the shapes and dtypes of a real model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from pagefleet_kernels.attention.page_copy import page_copy_triton
from pagefleet_kernels.attention.paged_attention import paged_attention_triton
from pagefleet_kernels.attention.rope_write import rope_write_triton
from pagefleet_kernels.build_inputs import build_inputs_triton
from pagefleet_kernels.gated import gated_triton
from pagefleet_kernels.grouped_gemm import grouped_gemm_triton, groups
from pagefleet_kernels.quantised.awq_gemm import awq_gemm_triton
from pagefleet_kernels.quantised.fp8_gemm import fp8_gemm_triton
from pagefleet_kernels.quantised.fp8_quantise import fp8_quantise_triton
from pagefleet_kernels.rms_norm import rms_norm_triton
from pagefleet_kernels.sample import sample_triton

BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn


def attention(
    new: int, page: int, dim: int, kv_dtype: torch.dtype = BF16, dtype: torch.dtype = BF16, **options: Any
) -> None:
    heads, kv_heads, sequences = 16, 4, 4
    cache = torch.zeros(8, page, kv_heads, dim, dtype=kv_dtype)
    starts = torch.arange(sequences + 1, dtype=torch.int32) * new
    tables = torch.zeros(sequences, 256, dtype=torch.int32)
    lengths = torch.full((sequences,), 512, dtype=torch.int32)
    q = torch.zeros(sequences * new, heads, dim, dtype=dtype)
    paged_attention_triton(q, cache, cache, tables, starts, lengths, 0.1, new, **options)


def rope(dtype: torch.dtype, kv_dtype: torch.dtype, normed: bool) -> None:
    q, k = torch.zeros(4, 16, 128, dtype=dtype), torch.zeros(4, 4, 128, dtype=dtype)
    angles, slots = torch.zeros(64, 64), torch.zeros(4, dtype=torch.int32)
    norm = torch.ones(128, dtype=dtype) if normed else None
    cache = torch.zeros(64, 4, 128, dtype=kv_dtype)
    rope_write_triton(q, k, k, angles, angles, slots.long(), slots, cache, cache, q_norm=norm, k_norm=norm)


def awq(rows: int, dtype: torch.dtype) -> None:
    packed, zeros = torch.zeros(4096, 512, dtype=torch.int32), torch.zeros(32, 512, dtype=torch.int32)
    awq_gemm_triton(torch.zeros(rows, 4096, dtype=dtype), packed, zeros, torch.zeros(32, 4096, dtype=FP16))


def fp8(rows: int) -> None:
    x, weight = torch.zeros(rows, 4096, dtype=FP8), torch.zeros(4096, 4096, dtype=FP8)
    fp8_gemm_triton(x, torch.ones(rows), weight, torch.ones(4096), BF16)


def grouped(biased: bool) -> None:
    weight = torch.zeros(32, 1536, 2048, dtype=BF16)
    bias = torch.zeros(32, 1536, dtype=BF16) if biased else None
    chosen = torch.arange(256).view(64, 4) % 32
    grouped_gemm_triton(torch.zeros(64, 2048, dtype=BF16), weight, bias, groups(chosen, 32), 4)


def sampling(dtype: torch.dtype) -> None:
    ones = torch.ones(4)
    sample_triton(torch.zeros(4, 32_000, dtype=dtype), ones, ones.int(), ones, ones, ones.long(), ones.long())


def inputs() -> None:
    tokens = torch.zeros(64, dtype=torch.int32)
    build_inputs_triton(tokens, tokens, tokens[1:], tokens, tokens, torch.zeros(64, 256, dtype=torch.int32), 16)


def page_copies() -> None:
    pages = torch.zeros(8, dtype=torch.int32)
    page_copy_triton(torch.zeros(9, 16, 4, 128, dtype=BF16), pages, torch.zeros(9, 16, 4, 128, dtype=BF16), pages)


CASES: dict[str, Callable[[], object]] = {
    "decode": partial(attention, 1, 16, 128, splits=4),
    "decode fp8": partial(attention, 1, 64, 128, FP8, splits=4),
    "decode fp32": partial(attention, 1, 16, 64, FP32, FP32, splits=1),
    "decode fp32, fp8 pages": partial(attention, 1, 16, 64, FP8, FP32, splits=1),
    "decode window": partial(attention, 1, 16, 256, window=1024),
    "decode cap and sinks": partial(attention, 1, 16, 64, splits=4, cap=50.0, sinks=torch.zeros(16, dtype=BF16)),
    "prefill cap": partial(attention, 512, 16, 256, splits=1, window=1024, cap=50.0),
    "prefill": partial(attention, 512, 64, 128, splits=1),
    "prefill 80": partial(attention, 512, 16, 80, splits=1),
    "prefill fp8": partial(attention, 512, 16, 128, FP8, splits=1),
    "prefill fp32 256": partial(attention, 512, 16, 256, FP32, FP32, splits=1),
    "prefill 256": partial(attention, 512, 16, 256, splits=1),
    "mixed": partial(attention, 8, 16, 64),
    "short prefill": partial(attention, 8, 16, 128, splits=1),
    "short prefill 256": partial(attention, 8, 16, 256, splits=1),
    "rms_norm": lambda: rms_norm_triton(torch.zeros(4, 4096, dtype=BF16), torch.zeros(4096, dtype=BF16), 1e-5),
    "gated": lambda: gated_triton(torch.zeros(4, 8192, dtype=BF16)),
    "gated gelu": lambda: gated_triton(torch.zeros(4, 8192, dtype=BF16), "gelu_tanh"),
    "gated clamped": lambda: gated_triton(torch.zeros(4, 8192, dtype=BF16), "clamped_swiglu"),
    "grouped gemm": partial(grouped, False),
    "grouped gemm, biases": partial(grouped, True),
    "rope": partial(rope, BF16, BF16, False),
    "rope norm fp8": partial(rope, BF16, FP8, True),
    "rope fp32": partial(rope, torch.float32, torch.float32, True),
    "fp8 quantise row": lambda: fp8_quantise_triton(torch.zeros(4, 4096, dtype=BF16)),
    "fp8 quantise tensor": lambda: fp8_quantise_triton(torch.zeros(4, 4096, dtype=BF16), torch.ones(1)),
    "page copy": page_copies,
    "inputs": inputs,
    "awq 1": partial(awq, 1, FP16),
    "awq 64": partial(awq, 64, BF16),
    "awq 256": partial(awq, 256, BF16),
    "fp8 1": partial(fp8, 1),
    "fp8 256": partial(fp8, 256),
    "sample bf16": partial(sampling, BF16),
    "sample fp32": partial(sampling, torch.float32),
}
