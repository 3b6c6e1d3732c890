"""One rank of a model on a device: reads its part of the weights, makes its pool, state and graphs. Never schedules."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.model import adapters
from pagefleet_engine.model.adapters import Adapter, Applied, Part
from pagefleet_engine.model.checkpoint import source, weights
from pagefleet_engine.model.checkpoint.config import ModelConfig
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.checkpoint.quantization import Method
from pagefleet_engine.model.checkpoint.source import Format, ModelSource
from pagefleet_engine.model.checkpoint.weights import Weights
from pagefleet_engine.model.heads import weights as heads
from pagefleet_engine.model.heads.states import Capture
from pagefleet_engine.runner.common.adapters import changed_rows
from pagefleet_engine.runner.common.head_drafts import check_head
from pagefleet_engine.runner.common.speculator import FIELD as DRAFT
from pagefleet_engine.runner.common.speculator import check_draft
from pagefleet_engine.runner.common.stats import longest
from pagefleet_engine.runner.device.model.head import DeviceHead, StatePool
from pagefleet_engine.runner.device.model.model import DeviceDecoder, Pool
from pagefleet_engine.runner.device.model.shard import Shard
from pagefleet_engine.runner.device.model.weights import Reader
from pagefleet_engine.runner.device.steps import memory
from pagefleet_engine.runner.device.steps.capture import Capture as Graphs
from pagefleet_engine.runner.device.steps.executor import Executor
from pagefleet_engine.runner.device.steps.head_executor import HeadExecutor
from pagefleet_engine.runner.device.steps.host_pages import HostPages, Paged
from pagefleet_engine.runner.device.steps.preparation import Preparation
from pagefleet_engine.runner.device.steps.sizes import graph_sizes, verify_shapes
from pagefleet_engine.runner.device.steps.state import State
from pagefleet_engine.runner.device.steps.step import DeviceStep
from pagefleet_kernels.kernels import REFERENCE, kernels
from pagefleet_kernels.launch.plan import MAX_HEAD_DIM

QUANTIZATIONS = ("none", "fp8", "awq")
CAPABILITY, FP8_CAPABILITY = (8, 0), (8, 9)  # the least compute capabilities for bfloat16 (Ampere) and for FP8 (Ada)


class Rank:
    """One rank. All ranks make the same calls in the same order, so that collectives match. Raises ModelError."""

    def __init__(self, config: EngineConfig, device: torch.device, shard: Shard) -> None:
        self.config, self.device, self.shard = config, device, shard
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        if capability is not None and config.kernels != "reference":
            check_gpu(capability, config)
        self._multiplies_fp8 = capability is None or capability >= FP8_CAPABILITY
        try:
            self.kernels = REFERENCE if config.kernels == "reference" else kernels(device)
        except ValueError as error:
            raise ModelError("spec.engine.image", str(error)) from error
        self.adapters: dict[int, Adapter[Part]] = {}  # by the numbers that steps name them by
        self._model: DeviceDecoder | None = None
        self._draft: DeviceDecoder | None = None
        self._head: DeviceHead | None = None
        self._executor: Executor | None = None
        self._drafting: Executor | HeadExecutor | None = None
        self.pages = 0
        self.host_places = 0
        self.wake()

    @property
    def executor(self) -> Executor:
        """Raises RuntimeError while asleep."""
        if self._executor is None:
            raise RuntimeError("the engine is asleep")
        return self._executor

    def executor_of(self, step: DeviceStep) -> Executor | HeadExecutor:
        """Return the executor of what computes the step. Raises RuntimeError while asleep, and without a draft model or head."""
        if not step.by_draft_model:
            return self.executor
        if self._drafting is None:
            raise RuntimeError("the engine is asleep, or has no draft model")
        return self._drafting

    @property
    def description(self) -> dict[str, str]:
        dtype = str(self.executor.pool.memory.dtype).removeprefix("torch.")
        return {
            "architecture": self.model_config.kind, "model_impl": "pagefleet", "kernels": self.kernels.name,
            "kv_cache_dtype": dtype, "weights": self.stored,
        }  # fmt: skip

    @property
    def usable(self) -> bool:
        """Whether the device still computes: after a fault of a kernel no call to CUDA succeeds until the process ends."""
        if self.device.type != "cuda":
            return True
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return False
        return True

    def adapter(self, path: str) -> Adapter[Part]:
        """Read this rank's part of a LoRA adapter to its device. Raises ValueError."""
        if self.config.nodes > 1:  # a folder that another machine cannot read would end the engine
            raise ValueError("adapters are not supported on several nodes")
        model = self.executor.model
        adapter = adapters.load(Path(path), self.model_config)

        def part(product: str, one: Part) -> Part:
            cut = self.shard.part(product, one)
            return Part(cut.down.to(model.device, model.dtype), cut.up.to(model.device, model.dtype), cut.begin)

        return Adapter({place: tuple(part(place[1], one) for one in own) for place, own in adapter.parts.items()})

    def changes(self, step: DeviceStep) -> Applied | None:
        """Return the changes that adapters make to a step; None when none of its sequences has one."""
        if not (step.adapters >= 0).any():
            return None
        numbers = [number if number >= 0 else None for number in step.adapters.tolist()]
        rows = changed_rows(numbers, step.counts.tolist())
        sent = self.executor.state.sent
        return Applied([(self.adapters[number], sent(np.array(own))) for number, own in rows.items()])

    def sleep(self, level: int) -> None:
        """Give the pages back, and with level 2 the weights too."""
        self._executor = self._drafting = None
        if level >= 2:
            self._model = self._draft = self._head = None
        gc.collect()  # an executor and its graphs refer to each other
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.inference_mode()
    def wake(self) -> None:
        """Be ready again. Raises ModelError."""
        try:
            if self._model is None:
                self._model = self._read()
                self._draft, self._head = self._read_draft(), self._read_head(self._model)
            if self._executor is None:
                self._make(self._model)
        except torch.OutOfMemoryError as error:
            raise ModelError(SOURCE, f"{self.config.model!r} does not fit the GPU's memory: {error}") from error

    def _read(self) -> DeviceDecoder:
        config = self.config
        if config.quantization not in QUANTIZATIONS:
            allowed = ", ".join(QUANTIZATIONS)
            raise ModelError("spec.model.quantization", f"{config.quantization!r} is not for a GPU; for it: {allowed}")
        model_source = source.resolve(config.model)
        self.model_config, unread = weights.load(model_source)
        self.max_model_len = longest(config, self.model_config.max_position)
        stored = None if self.model_config.stored is None else self.model_config.stored.method
        if config.quantization == "awq" and stored is not Method.AWQ:
            raise ModelError("spec.model.quantization", "awq is for checkpoints that are stored so; this one is not")
        check_heads(self.model_config, SOURCE)
        model = self._decoder(model_source, self.model_config, unread)
        self.stored = unread.summary
        return model

    def _read_draft(self) -> DeviceDecoder | None:
        """Read the draft model, if there is one. Its ranks share it as they share the model. Raises ModelError."""
        settings = self.config.speculation
        if settings is None or settings.model is None or settings.by_head:
            return None
        model_source = source.resolve(settings.model)
        config, unread = weights.load(model_source)
        check_heads(config, DRAFT)
        check_draft(config, self.model_config, self.max_model_len)
        try:
            return self._decoder(model_source, config, unread)
        except ModelError as error:
            raise ModelError(DRAFT, error.message) from error

    def _read_head(self, served: DeviceDecoder) -> DeviceHead | None:
        """Read the EAGLE-3 head, if there is one. Its ranks share it as they share the model. Raises ModelError."""
        settings = self.config.speculation
        if settings is None or not settings.by_head:
            return None
        try:
            files = heads.load(source.resolve(settings.model or "").path)
            layers = check_head(files, self.model_config)
            check_heads(files.config.shape, DRAFT)
            fp8 = self.config.quantization == "fp8"
            reader = Reader(files.weights, self.shard, self.device, self.kernels, fp8=fp8)
            return DeviceHead(files, reader, served, layers, self.shard, self.max_model_len, self.kernels)
        except ModelError as error:
            raise ModelError(DRAFT, error.message) from error

    def _decoder(self, model_source: ModelSource, config: ModelConfig, unread: Weights) -> DeviceDecoder:
        dtype = None
        if model_source.format is Format.GGUF:  # its blocks are floats of no dtype
            dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        reader = Reader(
            unread, self.shard, self.device, self.kernels, fp8=self.config.quantization == "fp8",
            stored_fp8=self._multiplies_fp8,
        )  # fmt: skip
        return DeviceDecoder(config, reader, self.shard, self.max_model_len, self.kernels, self.device, dtype)

    def _make(self, model: DeviceDecoder) -> None:
        config, size, head = self.config, self.config.page_size, self._head
        models = [model, *([self._draft] if self._draft else [])]
        dtypes = [memory.kv_dtype(config, one.dtype) for one in models]
        own = [one.page_bytes(size, dtype) for one, dtype in zip(models, dtypes, strict=True)]
        beside = 0 if head is None else head.state_bytes(size)  # what moves to the host with the model's pages
        if not self.pages:
            every = sum(own) + beside + (0 if head is None else head.page_bytes(size, dtypes[0]))
            self.pages = self.shard.least(self._sized(model, dtypes[0], every), self.device)
            self.host_places = memory.host_places(config, own[0] + beside, self.shard.size)
        pools = [one.pool(self.pages, size, dtype) for one, dtype in zip(models, dtypes, strict=True)]
        if head is None:
            prepare = self._prepared(pools, pools[:1])
            made = [self._on(one, pool, prepare) for one, pool in zip(models, pools, strict=True)]
            self._drafting = made[1] if self._draft else None
        else:
            states, pool = head.states(self.pages, size), head.pool(self.pages, size, dtypes[0])
            prepare = self._prepared([*pools, pool, states], [pools[0], states])
            made = [self._on(model, pools[0], prepare, head, states)]
            self._drafting = HeadExecutor(head, pool, states, prepare, self.kernels, config.max_num_seqs)
        if self.device.type == "cuda":
            self._capture(made)
        self._executor = made[0]

    def _capture(self, made: Sequence[Executor]) -> None:
        config, capture = self.config, Graphs()
        if config.speculation is not None:
            shapes = verify_shapes(config.max_num_seqs, config.speculation.tokens)
            made[0].verifying = capture.verify(made[0], shapes)
        for executor in made:
            executor.graphs = capture.decode(executor, graph_sizes(config.max_num_seqs))

    def _sized(self, model: DeviceDecoder, dtype: torch.dtype, page_bytes: int) -> int:
        config = self.config
        if self.device.type != "cuda":
            return config.num_pages or max(memory.CPU_PAGES, -(-self.max_model_len // config.page_size))
        pool, head = model.pool(1, config.page_size, dtype), self._head
        states = None if head is None else head.states(1, config.page_size)
        profiled = self._on(model, pool, self._prepared([pool], []), head, states)
        free = memory.profile(profiled, config, self.max_model_len)
        return memory.pages(config, page_bytes, self.max_model_len, free)

    def _prepared(self, pools: Sequence[Paged], on_host: Sequence[Paged]) -> Preparation:
        """`on_host`: those whose pages move to the host, where it has room."""
        places = -(-self.max_model_len // self.config.page_size)
        state = State(self.config.max_num_seqs, places, self.config.page_size, self.device, self.kernels)
        hosts = [HostPages(pool, self.host_places, self.kernels) for pool in on_host if self.host_places]
        return Preparation(pools, state, self.kernels, hosts)

    def _on(
        self, model: DeviceDecoder, pool: Pool, prepare: Preparation, head: DeviceHead | None = None,
        states: StatePool | None = None,
    ) -> Executor:  # fmt: skip
        """Return an executor of a model; with a head, one whose steps keep the states that the head reads."""
        tap = None if head is None or states is None else partial(Capture, head, states)
        return Executor(model, pool, prepare, self.kernels, self.max_model_len, tap)


def check_gpu(capability: tuple[int, int], config: EngineConfig) -> None:
    """Raises ModelError for what the kernels cannot compute on a GPU of this compute capability."""
    has = "the GPU's compute capability is {}.{}".format(*capability)
    if capability < CAPABILITY:
        raise ModelError("spec.resources.accelerator", f"{has}; at least {CAPABILITY[0]}.{CAPABILITY[1]} is supported")
    if capability < FP8_CAPABILITY:
        needed = f"{has}; fp8 needs {FP8_CAPABILITY[0]}.{FP8_CAPABILITY[1]}"
        if config.quantization == "fp8":
            raise ModelError("spec.model.quantization", needed)
        if config.kv_cache_dtype == "fp8":
            raise ModelError("spec.engine.kvCache.dtype", needed)


def check_heads(model: ModelConfig, field: str) -> None:
    """Raises ModelError for heads that are too wide for the kernels."""
    if model.head_dim > MAX_HEAD_DIM:
        raise ModelError(field, f"the model's head_dim is {model.head_dim}; at most {MAX_HEAD_DIM}")
