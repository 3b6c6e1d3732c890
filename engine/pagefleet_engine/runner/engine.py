"""The engine: weights, KV pages and the scheduler behind add, abort and step. One thread, no I/O after its start."""

from __future__ import annotations

import torch

from pagefleet_engine.core.limits import Limits
from pagefleet_engine.core.requests import (
    Batching,
    EngineConfig,
    EngineRequest,
    EngineStats,
    SamplingParams,
    TokenOutput,
)
from pagefleet_engine.core.scheduler import Scheduler, Work
from pagefleet_engine.model import linear, source, weights
from pagefleet_engine.model.config import ModelConfig
from pagefleet_engine.model.errors import SOURCE, ModelError
from pagefleet_engine.model.llama import Llama
from pagefleet_engine.runner import batch, machine, memory, sampling


class Engine:
    """Raises ModelError at construction when the model cannot be loaded or its KV pages do not fit the memory."""

    def __init__(self, config: EngineConfig) -> None:
        torch.set_num_threads(machine.threads())
        self._config = config
        if config.quantization not in linear.QUANTIZATIONS:
            allowed = ", ".join(linear.QUANTIZATIONS)
            raise ModelError(
                "spec.model.quantization", f"{config.quantization!r} is not supported; supported: {allowed}"
            )
        model, unread = weights.load(source.resolve(config.model))
        self.max_model_len = _length(config, model)
        self.eos_token_ids = model.eos_token_ids
        self.vocab_size = model.vocab_size
        limits = self._limits(model)
        self._model = Llama(model, unread, config.quantization, self.max_model_len)
        machine.return_freed_memory()
        shape = (limits.capacity, 2, model.kv_heads, model.head_dim)
        self._cache = [torch.zeros(shape) for _ in range(model.layers)]
        self._scheduler = Scheduler(limits)
        self._steps = 0
        self._warm_up()

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises ValueError when it could never be served, or its id is in use."""
        self._scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """Forget a request, known or not. No output follows."""
        self._scheduler.abort(request_id)

    def has_work(self) -> bool:
        return bool(self._scheduler.running or self._scheduler.waiting)

    @torch.inference_mode()
    def step(self, now: float) -> list[TokenOutput]:
        """One forward pass over what the scheduler chooses. `now` is seconds of the clock of `arrival`."""
        works = self._scheduler.schedule(now)
        if not works:
            return []
        ordered = batch.order(works)
        logits = self._forward(ordered)
        sampled = [work.sequence for work in ordered if work.samples]
        rows = [(sequence.request.sampling, len(sequence.tokens)) for sequence in sampled]
        tokens = sampling.choose(logits, rows)
        self._steps += 1
        return self._scheduler.commit(
            works, {sequence.request_id: token for sequence, token in zip(sampled, tokens, strict=True)}
        )

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

    def check(self) -> None:
        """Raises PageError unless free + cached + held = total and exactly the running sequences hold pages."""
        self._scheduler.check()

    def _forward(self, ordered: list[Work]) -> torch.Tensor:
        tokens, laid_out = batch.lay_out(ordered, self._config.page_size)
        return self._model.forward(tokens, laid_out, self._cache)

    def _limits(self, model: ModelConfig) -> Limits:
        config = self._config
        try:
            return Limits(
                page_size=config.page_size,
                pages=memory.pages(config, model, self.max_model_len, machine.memory_limit()),
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_model_len=self.max_model_len,
                vocab_size=model.vocab_size,
                batching=Batching(config.batching),
                eos_token_ids=frozenset(model.eos_token_ids),
            )
        except ValueError as error:
            raise ModelError("spec.engine.args", str(error)) from error

    @torch.inference_mode()
    def _warm_up(self) -> None:
        """Real forward passes, a prompt and a token after it: what /ready stands for. Leaves no trace in the pool."""
        count = min(8, self._scheduler.limits.capacity - 1, self.max_model_len - 1)
        prompt = tuple(index % self.vocab_size for index in range(1, count + 1))
        rehearsal = Scheduler(self._scheduler.limits)
        rehearsal.add(EngineRequest("warm-up", prompt, SamplingParams(max_tokens=2, ignore_eos=True), 0.0))
        while works := rehearsal.schedule(0.0):
            logits = self._forward(works)
            if not bool(logits.isfinite().all()):
                raise ModelError(
                    SOURCE,
                    f"{self._config.model!r}: the model's output is not finite; its weights are damaged",
                )
            rehearsal.commit(works, {"warm-up": int(logits[-1].argmax()) if len(logits) else 0})


def _length(config: EngineConfig, model: ModelConfig) -> int:
    wanted = model.max_position if config.max_model_len is None else config.max_model_len
    if not 2 <= wanted <= model.max_position:
        raise ModelError(
            "spec.model.maxLength", f"{wanted} is not within 2..{model.max_position}, the model's own length"
        )
    return wanted
