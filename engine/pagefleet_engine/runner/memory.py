"""Decides how many KV pages an engine gets: as configured, or what the memory limit leaves. Pure."""

from __future__ import annotations

from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.model.config import ModelConfig
from pagefleet_engine.model.errors import ModelError

FLOAT_BYTES = 4
# Beside weights and KV: activations, the allocator's slack, Python and torch in two processes.
RESERVE_BYTES = 512 << 20
MOST_PAGES_BY_DEFAULT = 8192


def page_bytes(model: ModelConfig, page_size: int) -> int:
    """Keys and values of one page in all layers, float32."""
    return 2 * model.layers * model.kv_size * FLOAT_BYTES * page_size


def weight_bytes(model: ModelConfig, quantization: str) -> int:
    """What the prepared weights take; int8 keeps the embedding and an untied output matrix in float32 as well."""
    layer = model.hidden_size * (2 * model.q_size + 2 * model.kv_size + 3 * model.intermediate_size)
    matrix = model.vocab_size * model.hidden_size
    floats = matrix * (1 if model.tied else 2)
    if quantization == "int8":
        return FLOAT_BYTES * floats + model.layers * layer + matrix
    return FLOAT_BYTES * (floats + model.layers * layer)


def pages(config: EngineConfig, model: ModelConfig, max_model_len: int, limit: int) -> int:
    """Pages of the KV pool; `limit` is the bytes that this container may use.

    Raises ModelError when the configured pages do not fit, or what fits does not hold one request of full length.
    """
    size = page_bytes(model, config.page_size)
    spare = limit - weight_bytes(model, config.quantization) - RESERVE_BYTES
    if config.num_pages is not None:
        if config.num_pages * size > spare:
            raise ModelError(
                "spec.engine.kvCache.pages",
                f"{config.num_pages} pages take {config.num_pages * size >> 20} MiB, but of {limit >> 20} MiB "
                f"{max(spare, 0) >> 20} MiB are left beside the weights: at most {max(spare, 0) // size} pages",
            )
        return config.num_pages
    least = -(-max_model_len // config.page_size)
    found = min(int(spare * config.kv_memory_fraction) // size, max(MOST_PAGES_BY_DEFAULT, least))
    if found < least:
        raise ModelError(
            "spec.resources.memory",
            f"{limit >> 20} MiB leave room for {max(found, 0)} KV pages; one request of {max_model_len} tokens "
            f"needs {least}: raise the memory or lower spec.model.maxLength",
        )
    return found
