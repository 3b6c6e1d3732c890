"""Decides how many KV pages an engine gets: as configured, or what the memory limit leaves. Pure."""

from __future__ import annotations

from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.model.checkpoint.config import ModelConfig
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.model.checkpoint.weights import ElementBytes
from pagefleet_engine.model.heads.config import HeadConfig

# Beside weights and KV: activations, the allocator's slack, Python and torch in two processes.
RESERVE_BYTES = 512 << 20
MAX_PAGES_BY_DEFAULT = 8192
KV_BYTES = {"float32": 4, "float16": 2}
INT8_BYTES = 17 / 16  # a float32 scale for each 64


def kv_dtype(config: EngineConfig) -> str:
    """Return float32, which is exact; or half precision, which makes no measurable difference beside int8 weights."""
    if config.kv_cache_dtype != "auto":
        return config.kv_cache_dtype
    return "float16" if config.quantization == "int8" else "float32"


def page_bytes(model: ModelConfig, page_size: int, dtype: str) -> int:
    """Keys and values of one page in all layers."""
    return 2 * model.layers * model.kv_size * KV_BYTES[dtype] * page_size


def head_page_bytes(head: HeadConfig, page_size: int, dtype: str) -> int:
    """Keys and values of one page of an EAGLE-3 head, and the states that it reads."""
    return page_bytes(head.shape, page_size, dtype) + head.shape.hidden_size * KV_BYTES[dtype] * page_size


def weight_bytes(model: ModelConfig, quantization: str, element: ElementBytes) -> int:
    """Return the bytes of the prepared weights: the embedding to look rows up in, layers and output matrix packed.

    `element`: of weights that stay as their file has them.
    """
    rows = model.layers * (2 * model.q_size + 2 * model.kv_size) + sum(map(model.mlp_rows, range(model.layers)))
    matrix = model.vocab_size * model.hidden_size
    if quantization == "int8":
        return 2 * matrix + int(INT8_BYTES * (rows * model.hidden_size + matrix))
    return int((element.embedding + element.output) * matrix + element.layers * rows * model.hidden_size)


def pages(config: EngineConfig, size: int, weights: int, max_model_len: int, limit: int) -> int:
    """Return the pages of the KV pool. `size` is one page's bytes, `weights` those of the weights, `limit` the container's.

    Raises ModelError when the configured pages do not fit, or what fits does not hold one request of full length.
    """
    spare = limit - weights - RESERVE_BYTES
    if config.num_pages is not None:
        if config.num_pages * size > spare:
            raise ModelError(
                "spec.engine.kvCache.pages",
                f"{config.num_pages} pages take {config.num_pages * size >> 20} MiB, but of {limit >> 20} MiB "
                f"{max(spare, 0) >> 20} MiB are left beside the weights: at most {max(spare, 0) // size} pages",
            )
        return config.num_pages
    least = -(-max_model_len // config.page_size)
    count = min(int(spare * config.kv_memory_fraction) // size, max(MAX_PAGES_BY_DEFAULT, least))
    if count < least:
        raise ModelError(
            "spec.resources.memory",
            f"{limit >> 20} MiB leave room for {max(count, 0)} KV pages; one request of {max_model_len} tokens "
            f"needs {least}: raise the memory or lower spec.model.maxLength",
        )
    return count
