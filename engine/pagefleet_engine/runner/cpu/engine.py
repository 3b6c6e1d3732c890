"""The engine: weights, KV pages and the scheduler behind add, abort and step. One thread, no I/O after its start."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from pagefleet_engine.core.blocks import root_hash
from pagefleet_engine.core.kv_events import Change
from pagefleet_engine.core.messages import Pin
from pagefleet_engine.core.requests import (
    EngineConfig,
    EngineRequest,
    EngineStats,
    Finish,
    TokenLogprobs,
    TokenOutput,
)
from pagefleet_engine.core.scheduler import Scheduler
from pagefleet_engine.core.work import Results, Work
from pagefleet_engine.model import adapters
from pagefleet_engine.model.checkpoint.config import ModelConfig
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.runner.common import machine, sampling
from pagefleet_engine.runner.common.adapters import Adapters
from pagefleet_engine.runner.common.grammar import on_demand
from pagefleet_engine.runner.common.prompts import Prompts
from pagefleet_engine.runner.common.recovery import bisected, report, start_over
from pagefleet_engine.runner.common.speculator import Speculator
from pagefleet_engine.runner.common.stats import computed, engine_stats, journal_of, limits
from pagefleet_engine.runner.common.warm_up import warm_up
from pagefleet_engine.runner.cpu import batch
from pagefleet_engine.runner.cpu.drafter import speculator
from pagefleet_engine.runner.cpu.loading import Loaded, load
from pagefleet_kernels.cpu import operations

Computed = tuple[
    Results, dict[sampling.Key, tuple[TokenLogprobs, ...]]
]  # each work item's tokens, and their log probabilities


class Engine:
    """Raises ModelError at construction when the model cannot be loaded or its KV pages do not fit the memory."""

    def __init__(self, config: EngineConfig) -> None:
        self._config, self._operations = config, operations(machine.threads(), config.kernels)
        # Torch computes little here: a second pool of threads would only be in the way of the operations' own.
        torch.set_num_threads(1 if self._operations.name == "native" else machine.threads())
        self._loaded: Loaded | None = None
        self._adapters = Adapters(config.max_adapters, self._read_adapter)
        self._steps, self._journal = 0, journal_of(config)
        self._computed = (0, 0)
        self._work_items: list[Work] = []  # of the last step
        self._asleep: Loaded | None = None
        self._speculator: Speculator | None = None
        self._wake()
        for name, path in config.adapters:
            try:
                self.load_adapter(name, path)
            except ValueError as error:
                raise ModelError("spec.engine.args", f"--lora-adapter {name}: {error}") from error

    @property
    def loaded(self) -> Loaded:
        """Raises RuntimeError while the engine is asleep."""
        if self._loaded is None:
            raise RuntimeError("the engine is asleep")
        return self._loaded

    @property
    def description(self) -> dict[str, str]:
        model = self.loaded.model.config
        return {
            "architecture": model.kind, "model_impl": self.loaded.model.implementation, "kernels": self._operations.name,
            "instructions": self._operations.instructions, "kv_cache_dtype": self.loaded.kv_dtype, "weights": self.loaded.stored,
        }  # fmt: skip

    @property
    def computed(self) -> tuple[int, int]:
        """Tokens of prompts, and single tokens with draft tokens, that the last step computed."""
        return self._computed

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises ValueError when it could never be served, or its id is in use."""
        if self._loaded is None:
            raise ValueError("the engine is asleep")
        request = self._adapters.versioned(request)
        self._sampler.check(request.sampling)
        self._scheduler.add(request, request.adapter or "")

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Forget a request, or one answer of it, known or not. No output of it follows."""
        for given_up in self._scheduler.abort(request_id, index):
            self._forget(request_id, given_up)

    def has_work(self) -> bool:
        return self._loaded is not None and bool(self._scheduler.running or self._scheduler.waiting)

    @torch.inference_mode()
    def step(self, now: float) -> list[TokenOutput]:
        """Run one forward pass over the work that the scheduler chooses. `now`: seconds of the clock of `arrival`.

        Where the pass raises, the requests that make it raise end with an error. The others get the same tokens as without them.
        """
        self._work_items, self._computed = [], (0, 0)
        if self._loaded is None:
            return []
        outputs: list[TokenOutput] = []
        try:
            self._step(now, outputs)
        except Exception as error:  # No single request raised it: only requests that have not begun can be computed.
            report("a step failed: the requests that had begun are ended", error)
            before = self._scheduler
            self._renew(self.loaded)
            outputs += start_over(before, self._scheduler, self._work_items, outputs)
        for output in outputs:
            if output.finish_reason is not None:
                self._forget(output.request_id, output.index)
        return outputs

    def load_adapter(self, name: str, path: str) -> None:
        """Raises ValueError when it cannot be used; an adapter of the same name is replaced for requests to come."""
        self._adapters.load(name, path, self._adapters_in_use())

    def unload_adapter(self, name: str) -> None:
        """Raises ValueError when it is not loaded, or in use."""
        self._adapters.unload(name, self._adapters_in_use())

    def pin(self, asked: Pin) -> None:
        """Keep a prompt's pages until a time. Raises ValueError when they have no room or the adapter is not loaded."""
        if self._loaded is None:
            raise ValueError("the engine is asleep")
        root = root_hash(asked.cache_salt, self._adapters.version(asked.adapter) or "")
        self._scheduler.pin(asked.name, asked.tokens, root, asked.until)

    def unpin(self, name: str) -> None:
        """Forget a pin, known or not."""
        self._scheduler.pool.unpin(name)

    def next_end(self) -> float | None:
        """Return when the first pin ends; None when none does."""
        return self._scheduler.pool.pins.next_end()

    def sleep(self, level: int) -> None:
        """Give the KV pages back, and with level 2 the weights too. Raises ValueError when requests are open."""
        if self.has_work():
            raise ValueError("requests are open")
        self._scheduler.expire(math.inf)  # the pins go with their pages
        if level >= 2:
            self._asleep = None
        elif self._loaded is not None:
            self._asleep = self._loaded.asleep()
        self._loaded = None
        self._speculator = None
        if self._journal is not None:
            self._journal.cleared()
        machine.return_freed_memory()

    def wake(self) -> None:
        """Be ready again. Raises ModelError when the model cannot be loaded again."""
        if self._loaded is None:
            self._wake(self._asleep)
            self._asleep = None

    def stats(self) -> EngineStats:
        return engine_stats(self._scheduler, self._config.page_size, self._steps)

    def take_changes(self) -> list[Change]:
        """Return what the prefix cache has taken in and given up since the last call, where KV events are published."""
        return [] if self._journal is None else self._journal.take()

    def check(self) -> None:
        """Raises PageError unless free + cached + kept + held = total and exactly the running sequences hold pages."""
        self._scheduler.check()

    def _read_adapter(self, path: str) -> adapters.Adapter[adapters.PreparedPart]:
        config = self.loaded.model.config
        if not isinstance(config, ModelConfig):
            raise ValueError(f"LoRA adapters of a {config.kind} model are not supported through transformers' own code")
        return adapters.prepared(adapters.load(Path(path), config), self._operations)

    def _adapters_in_use(self) -> set[str]:
        open_ones = (*self._scheduler.running, *self._scheduler.waiting)
        return {name for one in open_ones if (name := one.request.adapter) is not None}

    def _wake(self, reusable: Loaded | None = None) -> None:
        config = self._config
        loaded = load(config, self._operations, reusable)
        self._loaded, self.max_model_len = loaded, loaded.max_model_len
        model = loaded.model.config
        self.eos_token_ids, self.vocab_size, self.hidden_size = (
            model.eos_token_ids, model.vocab_size, model.hidden_size,
        )  # fmt: skip
        self._renew(loaded)
        self._warm_up()

    def _renew(self, loaded: Loaded) -> None:
        """Begin without a request and without a known page."""
        config, model = self._config, loaded.model.config
        self._scheduler = Scheduler(limits(config, model, loaded.pages, loaded.max_model_len), self._journal)
        if self._journal is not None:
            self._journal.cleared()
        grammars = on_demand(config.model, self.vocab_size, self.eos_token_ids)
        self._sampler = sampling.Sampler(self._operations, model.eos_token_ids, grammars)
        self._prompts = Prompts(lambda hidden: self.loaded.model.logits(hidden))  # sleep frees the model
        self._speculator = None
        if config.speculation is not None:
            self._speculator = speculator(config, config.speculation, loaded, self._sampler, self._operations)

    def _step(self, now: float, outputs: list[TokenOutput]) -> None:
        """Add what the step brings to `outputs`."""
        began = time.perf_counter()
        outputs += self._scheduler.expire(now)
        if self._speculator is not None:
            self._speculator.planned(self._scheduler)
        self._work_items = work_items = self._scheduler.schedule(now)
        self._computed = computed(work_items)
        whole = True
        for part, result in bisected(work_items, self._compute):
            if isinstance(result, Exception):
                request_id = part[0].sequence.request_id
                report("a request cannot be computed and is ended", result, request_id)
                outputs += self._scheduler.fail(request_id)
            else:
                outputs += self._commit(part, result)
            whole = whole and part == work_items and not isinstance(result, Exception)
        if work_items:
            self._steps += 1
            if self._speculator is not None and whole:
                self._speculator.learn(work_items, time.perf_counter() - began)

    def _compute(self, work_items: list[Work]) -> Computed:
        """Compute the work items. When it raises, only contents of pages have changed, and those are written again."""
        if self._speculator is not None:
            self._speculator.fill(work_items)
        ending = [work for work in work_items if work.samples]
        every = self._prompts.collects_any(work_items)
        states, sampled = self._forward(work_items, every)
        token_logprobs: dict[sampling.Key, tuple[TokenLogprobs, ...]] = {}
        answers: dict[int, tuple[tuple[int, ...], ...]] = {}
        if ending:
            logits = self.loaded.model.logits(states[sampled] if every else states)
            results, token_logprobs = self._sampler.choose(ending, logits)
            answers = {id(work): result for work, result in zip(ending, results, strict=True)}
        if every:
            self._prompts.take(work_items, states)
        return [answers.get(id(work), ()) for work in work_items], token_logprobs

    def _commit(self, work_items: list[Work], result: Computed) -> list[TokenOutput]:
        results, token_logprobs = result
        outputs = self._scheduler.commit(work_items, results)
        for request_id in {output.request_id for output in outputs if output.finish_reason == Finish.ERROR}:
            report("a request is ended: the token chosen for it is none of the vocabulary", request_id=request_id)
        self._copy_pages()
        return [
            replace(self._prompts.complete(output), logprobs=token_logprobs.get((output.request_id, output.index)))
            for output in outputs
        ]

    def _forward(self, work_items: Sequence[Work], every: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the last hidden states of the work items' tokens in order, and the rows whose logits are needed.

        The states [n, hidden] are those of `every` token, or of those rows only.
        """
        tokens, laid_out = batch.lay_out(work_items, self._config.page_size)
        applied = self._adapters.applied(work_items)
        only = None if every else laid_out.sampled
        loaded, tap = self.loaded, self.loaded.tap(laid_out.slots)
        return loaded.model.forward(tokens, laid_out, loaded.cache, applied, only, tap), laid_out.sampled

    def _copy_pages(self) -> None:
        for origin, target in self._scheduler.take_copies():
            self.loaded.copy_page(origin, target)
            if self._speculator is not None:
                self._speculator.copied(origin, target)

    def _forget(self, request_id: str, index: int) -> None:
        if index == 0:
            self._prompts.forget(request_id)
        self._sampler.forget(request_id, index)
        if self._speculator is not None:
            self._speculator.forget(request_id, index)

    @torch.inference_mode()
    def _warm_up(self) -> None:
        def forward(work_items: list[Work]) -> torch.Tensor:
            return self.loaded.model.logits(self._forward(work_items, every=True)[0][-1:])

        warm_up(Scheduler(self._scheduler.limits), self._config.model, self.vocab_size, forward)
