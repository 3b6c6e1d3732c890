"""Brings an engine's memory up: models prepared for the CPU, and KV pages sized from what is left."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from pagefleet_engine.core.requests import EngineConfig, Speculation
from pagefleet_engine.model import prepare
from pagefleet_engine.model.backend.choice import through_transformers
from pagefleet_engine.model.checkpoint import source, weights
from pagefleet_engine.model.checkpoint.config import ModelConfig
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.decoder import Decoder
from pagefleet_engine.model.heads import weights as heads
from pagefleet_engine.model.heads.head import EagleHead
from pagefleet_engine.model.heads.states import Capture, StatePages
from pagefleet_engine.model.served import Model, Tap
from pagefleet_engine.runner.common import machine
from pagefleet_engine.runner.common.head_drafts import check_head
from pagefleet_engine.runner.common.speculator import FIELD, check_draft
from pagefleet_engine.runner.common.stats import longest
from pagefleet_engine.runner.cpu import backend, memory
from pagefleet_kernels.cpu import KVPages, Operations
from pagefleet_kernels.cpu.layout import LANES, MAX_HEAD_DIM


@dataclass(frozen=True)
class Loaded:
    """Everything large that an engine holds. The pages of a draft model or a head, and the states that a head reads, lie
    beside the served model's. stored: `Weights.summary`.
    """

    model: Model
    cache: list[KVPages]
    draft: Decoder | None
    draft_cache: list[KVPages]
    max_model_len: int
    pages: int
    kv_dtype: str
    stored: str
    head: EagleHead | None = None
    states: StatePages | None = None

    def asleep(self) -> Loaded:
        """Return it without pages."""
        return replace(self, cache=[], draft_cache=[], states=None)

    def copy_page(self, origin: int, target: int) -> None:
        for pages in (*self.cache, *self.draft_cache):
            pages.copy(origin, target)
        if self.states is not None:
            self.states.copy(origin, target)

    def tap(self, slots: torch.Tensor) -> Tap | None:
        """Return what keeps the states of a pass whose tokens lie at `slots`; None: nobody reads them."""
        if self.head is None or self.states is None:
            return None
        return Capture(self.head, self.states, slots)


def load(config: EngineConfig, operations: Operations, reusable: Loaded | None) -> Loaded:
    """Load the models, unless `reusable` holds them already, and make their KV pages. Raises ModelError."""
    if config.quantization not in prepare.QUANTIZATIONS:
        allowed = ", ".join(prepare.QUANTIZATIONS)
        raise ModelError("spec.model.quantization", f"{config.quantization!r} is not supported; supported: {allowed}")
    loaded = _models(config, operations) if reusable is None else reusable
    machine.return_freed_memory()
    dtype: torch.dtype = getattr(torch, loaded.kv_dtype)
    cache = loaded.model.pages(loaded.pages, config.page_size, dtype)
    if loaded.head is not None:
        hidden = loaded.head.config.shape.hidden_size
        own = [loaded.head.pages(loaded.pages, config.page_size, dtype)]
        states = StatePages(loaded.pages, config.page_size, hidden, dtype)
        return replace(loaded, cache=cache, draft_cache=own, states=states)
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
    settings = config.speculation
    if settings is not None and settings.by_head:
        return _with_head(config, settings, model, unread, operations)
    draft_files: tuple[ModelConfig, weights.Weights] | None = None
    if settings is not None and settings.model is not None:
        draft_files = weights.load(source.resolve(settings.model))
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


def _with_head(
    config: EngineConfig, settings: Speculation, model: ModelConfig, unread: weights.Weights, operations: Operations
) -> Loaded:
    """Load the served model and its EAGLE-3 head."""
    dtype, size, length = memory.kv_dtype(config), config.page_size, longest(config, model.max_position)
    try:
        files = heads.load(source.resolve(settings.model or "").path)
        layers = check_head(files, model)
    except ModelError as error:
        raise ModelError(FIELD, error.message) from error
    _check_heads(files.config.shape, FIELD)
    bytes_of_page = memory.page_bytes(model, size, dtype) + memory.head_page_bytes(files.config, size, dtype)
    held = memory.weight_bytes(model, config.quantization, unread.element_bytes) + files.weight_bytes
    pages = memory.pages(config, bytes_of_page, held, length, machine.memory_limit())
    served = Decoder(model, unread, config.quantization, length, operations)
    try:
        head = EagleHead(files, served, layers, config.quantization == "int8", length, operations)
    except ModelError as error:
        raise ModelError(FIELD, error.message) from error
    return Loaded(served, [], None, [], length, pages, dtype, unread.summary, head)


def _check_heads(model: ModelConfig, field: str) -> None:
    if model.head_dim % LANES or model.head_dim > MAX_HEAD_DIM:
        raise ModelError(
            field, f"the model's head_dim is {model.head_dim}; supported: a multiple of {LANES} up to {MAX_HEAD_DIM}"
        )
