"""The engine: weights, KV pages and the scheduler behind add, abort and step. One thread, no I/O after its start."""

from __future__ import annotations

import time

import torch

from pagefleet_engine.core.blocks import PagePool
from pagefleet_engine.core.requests import (
    Batching,
    EngineConfig,
    EngineRequest,
    EngineStats,
    SamplingParams,
    TokenOutput,
)
from pagefleet_engine.core.scheduler import Limits, Scheduler
from pagefleet_engine.model import source, weights
from pagefleet_engine.model.config import ModelConfig
from pagefleet_engine.model.errors import ModelError
from pagefleet_engine.model.llama import Llama
from pagefleet_engine.runner import batch, sampling, threads

# Beside weights and KV: activations, the allocator's slack, Python itself.
RESERVE_BYTES = 512 << 20
MOST_PAGES_BY_DEFAULT = 8192


class Engine:
    """Raises ModelError at construction when the model cannot be loaded or no KV page fits the memory."""

    def __init__(self, config: EngineConfig) -> None:
        torch.set_num_threads(threads.available())
        self._config = config
        model_config, loaded = weights.load(source.resolve(config.model))
        self.max_model_len = self._length(model_config)
        self.eos_token_ids = model_config.eos_token_ids
        self.vocab_size = model_config.vocab_size
        try:
            self._model = Llama(model_config, loaded, config.quantization, self.max_model_len)
        except ValueError as error:
            raise ModelError("spec.model.quantization", str(error)) from error
        del loaded
        pages = self._pages(model_config)
        shape = (pages * config.page_size, model_config.kv_heads, model_config.head_dim)
        self._cache = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(model_config.layers)]
        limits = Limits(
            config.page_size,
            config.max_num_seqs,
            config.max_num_batched_tokens,
            self.max_model_len,
            Batching(config.batching),
            frozenset(self.eos_token_ids),
        )
        self._scheduler = Scheduler(limits, PagePool(pages))
        self._steps = 0
        self._warm_up()

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises ValueError when it could never be served."""
        self._scheduler.add(request)

    def abort(self, request_id: str) -> None:
        self._scheduler.abort(request_id)

    def has_work(self) -> bool:
        return bool(self._scheduler.running or self._scheduler.waiting)

    @torch.inference_mode()
    def step(self, now: float) -> list[TokenOutput]:
        """One forward pass over what the scheduler chooses. `now` is seconds of the clock of `arrival`."""
        works = self._scheduler.schedule(now)
        if not works:
            return []
        ordered, tokens, laid_out = batch.lay_out(works, self._config.page_size)
        logits = self._model.forward(tokens, laid_out, self._cache)
        sampling_works = [work for work in ordered if work.samples]
        chosen = sampling.choose(
            logits, [(work.sequence.request.sampling, len(work.sequence.tokens)) for work in sampling_works]
        )
        self._steps += 1
        by_request = {
            work.sequence.request.request_id: token for work, token in zip(sampling_works, chosen, strict=True)
        }
        return self._scheduler.commit(works, by_request)

    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            pages_total=scheduler.pool.total,
            pages_free=scheduler.pool.blank,
            pages_cached=scheduler.pool.cached,
            preemptions=scheduler.preemptions,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            steps=self._steps,
        )

    def check_idle(self) -> None:
        """Raises PageError or OutOfPages unless free + cached + held = total and, without work, nothing is held."""
        self._scheduler.check_idle()

    def _length(self, model: ModelConfig) -> int:
        wanted = self._config.max_model_len or model.max_position
        if not 2 <= wanted <= model.max_position:
            raise ModelError(
                "spec.model.maxLength", f"{wanted} is not within 2..{model.max_position}, the model's own length"
            )
        return wanted

    def _pages(self, model: ModelConfig) -> int:
        """Pages of the KV pool: as configured, or what the memory limit leaves."""
        if self._config.num_pages is not None:
            return self._config.num_pages
        page_bytes = 2 * model.layers * model.kv_heads * model.head_dim * 4 * self._config.page_size
        weight_bytes = 4 * (model.layers * (model.hidden_size * 2 * (model.heads + model.kv_heads) * model.head_dim
                            + 3 * model.hidden_size * model.intermediate_size) + 2 * model.vocab_size * model.hidden_size)  # fmt: skip
        spare = threads.memory_limit() * self._config.kv_memory_fraction - weight_bytes - RESERVE_BYTES
        pages = min(int(spare // page_bytes), MOST_PAGES_BY_DEFAULT)
        least = -(-self.max_model_len // self._config.page_size)
        if pages < least:
            raise ModelError(
                "spec.resources.memory",
                f"{threads.memory_limit() >> 20} MiB leave room for {max(pages, 0)} KV pages; one request of "
                f"{self.max_model_len} tokens needs {least}",
            )
        return pages

    def _warm_up(self) -> None:
        """A real forward pass of a prompt and a decode, through the scheduler: what /ready stands for."""
        prompt = tuple(index % self.vocab_size for index in range(1, min(9, self.max_model_len)))
        now = time.monotonic()
        self.add(EngineRequest("warm-up", prompt, SamplingParams(max_tokens=2, ignore_eos=True), now))
        while self.has_work():
            self.step(now)
