"""One rank of a model on a device: reads its part of the weights, makes its pool, state and graphs. Never schedules."""

from __future__ import annotations

from pathlib import Path

import torch

from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.model import adapters
from pagefleet_engine.model.adapters import Adapter, Part
from pagefleet_engine.model.checkpoint import source, weights
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.checkpoint.quantization import Method
from pagefleet_engine.model.checkpoint.source import Format
from pagefleet_engine.runner.common.stats import longest
from pagefleet_engine.runner.device.model.model import DeviceDecoder, Pool
from pagefleet_engine.runner.device.model.shard import Shard
from pagefleet_engine.runner.device.model.weights import Reader
from pagefleet_engine.runner.device.steps import memory
from pagefleet_engine.runner.device.steps.capture import capture
from pagefleet_engine.runner.device.steps.executor import Executor
from pagefleet_engine.runner.device.steps.host_pages import HostPages
from pagefleet_engine.runner.device.steps.sizes import graph_sizes
from pagefleet_engine.runner.device.steps.state import State
from pagefleet_kernels.kernels import REFERENCE, kernels
from pagefleet_kernels.launch.plan import MAX_HEAD_DIM

QUANTIZATIONS = ("none", "fp8", "awq")


class Rank:
    """One rank. All ranks make the same calls in the same order, so that collectives match. Raises ModelError."""

    def __init__(self, config: EngineConfig, device: torch.device, shard: Shard) -> None:
        self.config, self.device, self.shard = config, device, shard
        try:
            self.kernels = REFERENCE if config.kernels == "reference" else kernels(device)
        except ValueError as error:
            raise ModelError("spec.engine.image", str(error)) from error
        self._model: DeviceDecoder | None = None
        self._executor: Executor | None = None
        self.pages = 0
        self.host_places = 0
        self.wake()

    @property
    def executor(self) -> Executor:
        """Raises RuntimeError while asleep."""
        if self._executor is None:
            raise RuntimeError("the engine is asleep")
        return self._executor

    @property
    def description(self) -> dict[str, str]:
        dtype = str(self.executor.pool.memory.dtype).removeprefix("torch.")
        return {
            "architecture": self.model_config.kind, "kernels": self.kernels.name, "kv_cache_dtype": dtype,
            "weights": self.stored,
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

    def adapter(self, path: str) -> Adapter:
        """Read a LoRA adapter to this device. Raises ValueError."""
        if self.shard.size > 1:
            raise ValueError("adapters are not supported on several GPUs")
        model, adapter = self.executor.model, adapters.load(Path(path), self.model_config)

        def part(one: Part) -> Part:
            return Part(one.down.to(model.device, model.dtype), one.up.to(model.device, model.dtype), one.begin)

        return Adapter({place: tuple(part(one) for one in parts) for place, parts in adapter.parts.items()})

    def sleep(self, level: int) -> None:
        """Give the pages back, and with level 2 the weights too."""
        self._executor = None
        if level >= 2:
            self._model = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.inference_mode()
    def wake(self) -> None:
        """Be ready again. Raises ModelError."""
        try:
            if self._model is None:
                self._model = self._read()
            if self._executor is None:
                self._executor = self._made(self._model)
        except torch.OutOfMemoryError as error:
            raise ModelError(SOURCE, f"{self.config.model!r} does not fit the GPU's memory: {error}") from error

    def _read(self) -> DeviceDecoder:
        config = self.config
        if config.quantization not in QUANTIZATIONS:
            allowed = ", ".join(QUANTIZATIONS)
            raise ModelError("spec.model.quantization", f"{config.quantization!r} is not for a GPU; for it: {allowed}")
        model_source = source.resolve(config.model)
        self.model_config, unread = weights.load(model_source)
        self.max_model_len = longest(config, self.model_config)
        stored = None if self.model_config.stored is None else self.model_config.stored.method
        if config.quantization == "awq" and stored is not Method.AWQ:
            raise ModelError("spec.model.quantization", "awq is for checkpoints that are stored so; this one is not")
        if self.model_config.head_dim > MAX_HEAD_DIM:
            raise ModelError(SOURCE, f"the model's head_dim is {self.model_config.head_dim}; at most {MAX_HEAD_DIM}")
        dtype = None
        if model_source.format is Format.GGUF:  # its blocks are floats of no dtype
            dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        reader = Reader(unread, self.shard, self.device, self.kernels, fp8=config.quantization == "fp8")
        model = DeviceDecoder(
            self.model_config, reader, self.shard, self.max_model_len, self.kernels, self.device, dtype
        )
        self.stored = unread.summary
        return model

    def _made(self, model: DeviceDecoder) -> Executor:
        config, dtype = self.config, memory.kv_dtype(self.config, model.dtype)
        page_bytes = model.page_bytes(config.page_size, dtype)
        if not self.pages:
            self.pages = self.shard.least(self._sized(model, dtype, page_bytes), self.device)
            self.host_places = memory.host_places(config, page_bytes, self.shard.size)
        pool = model.pool(self.pages, config.page_size, dtype)
        host = HostPages(pool, self.host_places, self.kernels) if self.host_places else None
        executor = self._on(model, pool, host)
        if self.device.type == "cuda":
            executor.graphs = capture(executor, graph_sizes(config.max_num_seqs))
        return executor

    def _sized(self, model: DeviceDecoder, dtype: torch.dtype, page_bytes: int) -> int:
        config = self.config
        if self.device.type != "cuda":
            return config.num_pages or max(memory.CPU_PAGES, -(-self.max_model_len // config.page_size))
        trial = self._on(model, model.pool(1, config.page_size, dtype), None)
        free = memory.profile(trial, config, self.max_model_len)
        return memory.pages(config, page_bytes, self.max_model_len, free)

    def _on(self, model: DeviceDecoder, pool: Pool, host: HostPages | None) -> Executor:
        places = -(-self.max_model_len // self.config.page_size)
        state = State(self.config.max_num_seqs, places, self.config.page_size, self.device, self.kernels)
        return Executor(model, pool, state, self.kernels, self.max_model_len, host)
