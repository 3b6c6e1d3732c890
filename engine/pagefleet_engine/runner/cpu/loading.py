"""Brings an engine's memory up: models prepared for the CPU, and KV pages sized from what is left."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.model import prepare
from pagefleet_engine.model.backend.choice import through_transformers
from pagefleet_engine.model.checkpoint import source, weights
from pagefleet_engine.model.checkpoint.config import ModelConfig
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.decoder import Decoder
from pagefleet_engine.model.served import Model
from pagefleet_engine.runner.common import machine
from pagefleet_engine.runner.common.speculator import FIELD, check_draft
from pagefleet_engine.runner.common.stats import longest
from pagefleet_engine.runner.cpu import backend, memory
from pagefleet_kernels.cpu import KVPages, Operations
from pagefleet_kernels.cpu.layout import LANES, MAX_HEAD_DIM


@dataclass(frozen=True)
class Loaded:
    """Everything large that an engine holds. The draft model's pages lie beside the served one's. stored: `Weights.summary`."""

    model: Model
    cache: list[KVPages]
    draft: Decoder | None
    draft_cache: list[KVPages]
    max_model_len: int
    pages: int
    kv_dtype: str
    stored: str


def load(config: EngineConfig, operations: Operations, reusable: Loaded | None) -> Loaded:
    """Load the models, unless `reusable` holds them already, and make their KV pages. Raises ModelError."""
    if config.quantization not in prepare.QUANTIZATIONS:
        allowed = ", ".join(prepare.QUANTIZATIONS)
        raise ModelError("spec.model.quantization", f"{config.quantization!r} is not supported; supported: {allowed}")
    loaded = _models(config, operations) if reusable is None else reusable
    machine.return_freed_memory()
    dtype: torch.dtype = getattr(torch, loaded.kv_dtype)
    cache = loaded.model.pages(loaded.pages, config.page_size, dtype)
    draft_cache = loaded.draft.pages(loaded.pages, config.page_size, dtype) if loaded.draft else []
    return replace(loaded, cache=cache, draft_cache=draft_cache)


def _models(config: EngineConfig, operations: Operations) -> Loaded:
    if config.page_size < 1 or config.page_size % LANES:
        raise ModelError("spec.engine.kvCache.pageSize", f"must be a multiple of {LANES}, not {config.page_size}")
    found = source.resolve(config.model)
    if through_transformers(found, config.model_impl):
        other, length, pages = backend.load(config, found.path, operations)
        return Loaded(other, [], None, [], length, pages, memory.kv_dtype(config), "floats")
    model, unread = weights.load(found)
    length = longest(config, model.max_position)
    _check_heads(model, SOURCE)
    draft_files: tuple[ModelConfig, weights.Weights] | None = None
    if config.speculation is not None and config.speculation.model is not None:
        draft_files = weights.load(source.resolve(config.speculation.model))
        _check_heads(draft_files[0], FIELD)
        check_draft(draft_files[0], model, length)
    files = [(model, unread), *([draft_files] if draft_files else [])]
    dtype = memory.kv_dtype(config)
    size = sum(
        memory.page_bytes(shape, config.page_size, dtype) for shape, _ in files
    )  # a draft model shares the pages
    held = sum(memory.weight_bytes(shape, config.quantization, file.element_bytes) for shape, file in files)
    pages = memory.pages(config, size, held, length, machine.memory_limit())
    served = Decoder(model, unread, config.quantization, length, operations)
    draft = None
    if draft_files is not None:
        draft = Decoder(*draft_files, config.quantization, length, operations)
    return Loaded(served, [], draft, [], length, pages, dtype, unread.summary)


def _check_heads(model: ModelConfig, field: str) -> None:
    if model.head_dim % LANES or model.head_dim > MAX_HEAD_DIM:
        raise ModelError(
            field, f"the model's head_dim is {model.head_dim}; supported: a multiple of {LANES} up to {MAX_HEAD_DIM}"
        )
