"""Decides a device's KV pages: as configured, or what a profile pass has shown to be left. Pure but for `profile`."""

from __future__ import annotations

import numpy as np
import torch

from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.runner.device.steps.executor import Executor
from pagefleet_engine.runner.device.steps.step import Step

# Of a graph pool, and what the allocator cannot use of the rest.
GRAPH_BYTES = 512 << 20
DTYPES = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "fp8": torch.float8_e4m3fn,
}  # fmt: skip
CPU_PAGES = 512


def kv_dtype(config: EngineConfig, model: torch.dtype) -> torch.dtype:
    """The model's own, or FP8. Raises ModelError for another: attention multiplies queries and keys of one dtype."""
    if config.kv_cache_dtype == "auto":
        return model
    wanted = DTYPES[config.kv_cache_dtype]
    if wanted not in (model, torch.float8_e4m3fn):
        own = str(model).removeprefix("torch.")
        raise ModelError(
            "spec.engine.kvCache.dtype",
            f"{config.kv_cache_dtype!r} cannot be beside a model of {own} on a GPU; supported: auto, fp8",
        )
    return wanted


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
    found, least = int(free * config.kv_memory_fraction) // page_bytes, -(-longest // config.page_size)
    if found < least:
        raise ModelError(
            "spec.model.maxLength",
            f"the GPU has room for {max(found, 0)} KV pages beside the weights; one request of {longest} tokens "
            f"needs {least}: lower it, or use more GPUs",
        )
    return found


def host_places(config: EngineConfig, page_bytes: int, ranks: int) -> int:
    """Pages that a rank keeps on the host, 0 when none are wanted. Raises ModelError for memory that holds no page."""
    found = config.kv_offload_memory // ranks // page_bytes
    if config.kv_offload_memory and not found:
        raise ModelError(
            "spec.engine.args",
            f"--kv-offload-memory {config.kv_offload_memory} holds no page: a page takes {page_bytes * ranks} bytes",
        )
    return found


def largest_step(config: EngineConfig, longest: int) -> Step:
    """The most tokens and sequences of one step, on a pool of one page: what the profile pass computes."""
    sequences = min(config.max_num_seqs, config.max_num_batched_tokens)
    counts = np.ones(sequences, np.int32)
    # Long chunks first, until the budget is spent; nobody is longer than the longest request.
    left, chunk = config.max_num_batched_tokens - sequences, max(config.max_chunk_tokens, config.long_prompt_tokens)
    for index in range(sequences):
        more = min(left, longest - 1, chunk - 1)
        counts[index] += more
        left -= more
    every = np.arange(sequences, dtype=np.int32)
    return Step(np.zeros(int(counts.sum()), np.int32), counts, np.zeros(sequences, np.int32), every, every)


def profile(executor: Executor, config: EngineConfig, longest: int) -> int:
    """Bytes left on a GPU once the largest step has run. `executor` has a pool of one page."""
    step = largest_step(config, longest)
    for _ in range(2):  # the first pass compiles kernels and sets libraries up
        torch.cuda.reset_peak_memory_stats()
        executor.launch(step).tokens()
    torch.cuda.synchronize()
    activations = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    return free - activations - GRAPH_BYTES
