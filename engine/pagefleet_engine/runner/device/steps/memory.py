"""Decides a device's KV pages: as configured, or as many as fit beside a profile pass. Pure but for `profile`."""

from __future__ import annotations

import numpy as np
import torch

from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.model.checkpoint.config import ModelConfig
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.runner.device.steps.executor import Executor
from pagefleet_engine.runner.device.steps.step import DeviceStep
from pagefleet_kernels.launch.plan import DECODE_ROWS, SHORT_ROWS

# Bytes for a graph pool, and for memory that the allocator cannot use.
GRAPH_BYTES = 512 << 20
DTYPES = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "fp8": torch.float8_e4m3fn,
}  # fmt: skip
CPU_PAGES = 512


def kv_dtype(config: EngineConfig, model: torch.dtype) -> torch.dtype:
    """Return the model's dtype, or FP8. Raises ModelError for another: attention multiplies matrices of one dtype."""
    if config.kv_cache_dtype == "auto":
        return model
    dtype = DTYPES[config.kv_cache_dtype]
    if dtype not in (model, torch.float8_e4m3fn):
        own = str(model).removeprefix("torch.")
        raise ModelError(
            "spec.engine.kvCache.dtype",
            f"{config.kv_cache_dtype!r} cannot be beside a model of {own} on a GPU; supported: auto, fp8",
        )
    return dtype


def pages(config: EngineConfig, page_bytes: int, longest: int, free: int) -> int:
    """Pages of the pool, of `page_bytes` each; `free` bytes are left beside weights and the largest step.

    Raises ModelError when the configured pages do not fit, or what fits does not hold one request of `longest` tokens.
    """
    if config.num_pages is not None:
        if config.num_pages * page_bytes > free:
            raise ModelError(
                "spec.engine.kvCache.pages",
                f"{config.num_pages} pages take {config.num_pages * page_bytes >> 20} MiB, but {max(free, 0) >> 20} MiB "
                f"are left on the GPU: at most {max(free, 0) // page_bytes} pages",
            )
        return config.num_pages
    count, least = int(free * config.kv_memory_fraction) // page_bytes, -(-longest // config.page_size)
    if count < least:
        raise ModelError(
            "spec.model.maxLength",
            f"the GPU has room for {max(count, 0)} KV pages beside the weights; one request of {longest} tokens "
            f"needs {least}: lower it, or use more GPUs",
        )
    return count


def host_places(config: EngineConfig, page_bytes: int, ranks: int) -> int:
    """Return how many pages a rank stores on the host, 0 when that is off. Raises ModelError for less than a page."""
    count = config.kv_offload_memory // ranks // page_bytes
    if config.kv_offload_memory and not count:
        raise ModelError(
            "spec.engine.args",
            f"--kv-offload-memory {config.kv_offload_memory} holds no page: a page takes {page_bytes * ranks} bytes",
        )
    return count


def largest_step(config: EngineConfig, longest: int) -> DeviceStep:
    """The most tokens and sequences of one step, on a pool of one page: what the profile pass computes."""
    sequences = min(config.max_num_seqs, config.max_num_batched_tokens)
    counts = np.ones(sequences, np.int32)
    # Long chunks first, until the budget is spent; none is longer than the longest request.
    left, chunk = config.max_num_batched_tokens - sequences, max(config.max_chunk_tokens, config.long_prompt_tokens)
    for index in range(sequences):
        more = min(left, longest - 1, chunk - 1)
        counts[index] += more
        left -= more
    every = np.arange(sequences, dtype=np.int32)
    return DeviceStep(np.zeros(int(counts.sum()), np.int32), counts, np.zeros(sequences, np.int32), every, every)


def widest_step(config: EngineConfig, longest: int) -> DeviceStep:
    """The most tokens that are sampled in one step: each sequence's with its draft tokens, as far as the budget allows."""
    drafts = 0 if config.speculation is None else min(config.speculation.tokens, longest - 1)
    sequences = min(config.max_num_seqs, -(-config.max_num_batched_tokens // (drafts + 1)))
    counts, every = np.full(sequences, drafts + 1, np.int32), np.arange(sequences, dtype=np.int32)
    zeros = np.zeros(sequences, np.int32)
    return DeviceStep(np.zeros(int(counts.sum()), np.int32), counts, zeros, every, every, drafts=counts - 1)


def varied_steps(config: EngineConfig, longest: int, group: int) -> list[DeviceStep]:
    """Steps of very short, short and long queries, of many sequences and of one with the longest context: whatever attention is
    launched for a prompt's part is compiled by them. Otherwise the first request behind a cached prefix waits for a compiler.
    `group`: query heads of a KV head.
    """
    steps = []
    for rows in (1, DECODE_ROWS, SHORT_ROWS):
        count = max(1, min(max(2, rows // group + 1), longest - 1))
        many = max(1, min(config.max_num_seqs, config.max_num_batched_tokens // count))
        for sequences, start in ((many, 0), (1, longest - count)):
            every = np.arange(sequences, dtype=np.int32)
            counts, starts = np.full_like(every, count), np.full_like(every, start)
            steps.append(DeviceStep(np.zeros(sequences * count, np.int32), counts, starts, every, every))
    return steps


def first_steps(config: EngineConfig, longest: int, model: ModelConfig) -> list[DeviceStep]:
    """The steps that a device computes before it serves, on a pool of one page: varied ones, and the largest of all."""
    steps = varied_steps(config, longest, model.heads // model.kv_heads)
    return [*steps, largest_step(config, longest), *([widest_step(config, longest)] if config.speculation else [])]


def profile(executor: Executor, config: EngineConfig, longest: int) -> int:
    """Bytes left on a GPU once the largest steps have run. `executor` has a pool of one page."""
    steps = first_steps(config, longest, executor.model.config)
    for _ in range(2):  # the first pass compiles kernels and sets libraries up
        torch.cuda.reset_peak_memory_stats()
        for step in steps:
            executor.launch(step).tokens()
    torch.cuda.synchronize()
    activations = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    return free - activations - GRAPH_BYTES
