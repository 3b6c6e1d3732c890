"""The engine on a device: its scheduler runs one step ahead of the GPU. `add`, `abort` and `step` are as on the CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from pagefleet_engine.core.blocks import root_hash
from pagefleet_engine.core.kv_events import Change
from pagefleet_engine.core.messages import Pin
from pagefleet_engine.core.offload import Move
from pagefleet_engine.core.overlap import OverlapScheduler
from pagefleet_engine.core.requests import EngineConfig, EngineRequest, EngineStats, TokenOutput
from pagefleet_engine.core.work import Results, Work
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.runner.common.adapters import Adapters, number_of
from pagefleet_engine.runner.common.grammar import on_demand
from pagefleet_engine.runner.common.head_drafts import HeadDrafts, following
from pagefleet_engine.runner.common.prompts import Prompts
from pagefleet_engine.runner.common.recovery import report, start_over
from pagefleet_engine.runner.common.sampling import Sampler, answered
from pagefleet_engine.runner.common.speculator import DraftModel, Speculator
from pagefleet_engine.runner.common.stats import computed, engine_stats, journal_of, limits
from pagefleet_engine.runner.common.warm_up import warm_up
from pagefleet_engine.runner.device.drafting import DeviceDrafter, Drafting
from pagefleet_engine.runner.device.ranks.process_group import process_group
from pagefleet_engine.runner.device.ranks.rank import Rank
from pagefleet_engine.runner.device.steps.choice import choose, chosen_by_host, seed
from pagefleet_engine.runner.device.steps.executor import InFlightStep, StepLogits
from pagefleet_engine.runner.device.steps.seats import Seats
from pagefleet_engine.runner.device.steps.step import DeviceStep, none
from pagefleet_kernels.cpu import operations


class DeviceEngine:
    """Raises ModelError at construction. `device` is a GPU, or the CPU, where the same steps run without one."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        self._config, self._steps, self._computed = config, 0, (0, 0)
        self._journal = journal_of(config)
        self._workers = process_group(config, device)
        self._rank = Rank(config, self._workers.device(0), self._workers.join())
        self._adapters = Adapters(config.max_adapters, self._rank.adapter)
        self._asleep = True
        self._work_items: list[Work] = []  # of the last step and the one that it settled
        self._flight: InFlightStep | None = None
        self._woken()
        for name, path in config.adapters:
            try:
                self.load_adapter(name, path)
            except ValueError as error:
                raise ModelError("spec.engine.args", f"--lora-adapter {name}: {error}") from error

    @property
    def description(self) -> dict[str, str]:
        return self._rank.description

    @property
    def computed(self) -> tuple[int, int]:
        """Tokens of prompts, and single tokens, that the last step computed."""
        return self._computed

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises ValueError when it could never be served, or its id is in use."""
        if self._asleep:
            raise ValueError("the engine is asleep")
        request = self._adapters.versioned(request)
        self._sampler.check(request.sampling)
        self._scheduler.add(request, request.adapter or "")

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Forget a request, or one answer of it, known or not. No output of it follows."""
        for given_up in self._scheduler.abort(request_id, index):
            self._forget(request_id, given_up)

    def has_work(self) -> bool:
        scheduler = self._scheduler
        return not self._asleep and bool(scheduler.running or scheduler.waiting or scheduler.in_flight)

    @torch.inference_mode()
    def step(self, now: float) -> list[TokenOutput]:
        """Launch the next step, then take the results of the one before it. `now`: seconds of `arrival`'s clock.

        Where that raises, the requests that have begun end with an error, and those that have not are computed next. It
        raises where nothing can go on: WorkerDied when another rank has ended, the error itself when the device is lost,
        or when other ranks may wait in a collective that this one has left.
        """
        self._work_items, self._computed = [], (0, 0)
        if self._asleep:
            return []
        outputs: list[TokenOutput] = []
        try:
            self._stepped(now, outputs)
        except Exception as error:
            if isinstance(error, RuntimeError):
                self._workers.raise_cause(error)
            if not (self._rank.shard.size == 1 and self._rank.usable):
                raise
            report("a step failed: the requests that had begun are ended", error)
            before = self._scheduler
            self._renew()
            outputs += start_over(before, self._scheduler, self._work_items, outputs)
        for output in outputs:
            if output.finish_reason is not None:
                self._forget(output.request_id, output.index)
        return outputs

    def _stepped(self, now: float, outputs: list[TokenOutput]) -> None:
        """Add what the step brings to `outputs`."""
        self._work_items = list(self._scheduler.flown)
        outputs += self._scheduler.expire(now)
        drafting = self._drafting
        in_turn = drafting is not None and drafting.in_turn(self._scheduler)
        if self._scheduler.must_wait or in_turn:
            outputs += self._settle()
        if drafting is not None:
            (drafting.plan if in_turn else drafting.rest)(self._scheduler)
        work_items = self._scheduler.schedule(now)
        self._work_items += work_items
        self._computed = computed(work_items)
        self._moves += self._scheduler.take_moves()
        if drafting is not None:
            drafting.scheduled(work_items, self._moves)
        if any(chosen_by_host(work) for work in work_items):
            brought = self._together(work_items)
        elif in_turn and work_items:
            brought = self._verified(work_items)
        else:
            brought = self._ahead(work_items)
        outputs += brought
        if drafting is not None:
            drafting.learn(work_items, in_turn, brought)
        self._steps += bool(work_items)

    def load_adapter(self, name: str, path: str) -> None:
        """Raises ValueError when it cannot be used; an adapter of the same name is replaced for requests to come."""
        self._adapters.load(name, path, self._in_use())
        self._workers.load_adapter(number_of(self._adapters.version(name)), path)
        self._keep_adapters()

    def unload_adapter(self, name: str) -> None:
        """Raises ValueError when it is not loaded, or in use."""
        self._adapters.unload(name, self._in_use())
        self._keep_adapters()

    def pin(self, asked: Pin) -> None:
        """Keep a prompt's pages until a time. Raises ValueError when they have no room or the adapter is not loaded."""
        if self._asleep:
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
        if self._scheduler.running or self._scheduler.waiting:
            raise ValueError("requests are open")
        self._settle()  # a step may be on its way for answers that were given up
        self._scheduler.expire(math.inf)  # the pins go with their pages
        self._asleep = True
        if self._journal is not None:
            self._journal.cleared()
        self._workers.sleep(level)
        self._rank.sleep(level)

    def wake(self) -> None:
        """Be ready again. Raises ModelError when the model cannot be loaded again."""
        if self._asleep:
            self._workers.wake()
            self._rank.wake()
            self._woken()

    def stats(self) -> EngineStats:
        return engine_stats(self._scheduler, self._config.page_size, self._steps)

    def take_changes(self) -> list[Change]:
        """Return what the prefix cache has taken in and given up since the last call, where KV events are published."""
        return [] if self._journal is None else self._journal.take()

    def check(self) -> None:
        """Raises PageError unless free + cached + kept + held = total and exactly the running sequences hold pages."""
        self._scheduler.check()

    def close(self) -> None:
        """End the workers."""
        self._workers.close()

    def _woken(self) -> None:
        rank, config = self._rank, self._rank.model_config
        self.max_model_len = rank.max_model_len
        self.eos_token_ids, self.vocab_size, self.hidden_size = (
            config.eos_token_ids, config.vocab_size, config.hidden_size,
        )  # fmt: skip
        self._renew()
        self._warm_up()
        self._asleep = False

    def _renew(self) -> None:
        """Begin without a request, a step on its way or a known page."""
        rank, config = self._rank, self._rank.model_config
        bounds = limits(self._config, config, rank.pages, rank.max_model_len)
        self._scheduler = OverlapScheduler(bounds, rank.host_places, self._journal)
        if self._journal is not None:
            self._journal.cleared()
        self._flight = None
        self._prompt_logits: Iterator[torch.Tensor] = iter(())
        grammars = on_demand(self._config.model, self.vocab_size, self.eos_token_ids)
        self._sampler = Sampler(operations(1, "reference"), config.eos_token_ids, grammars)
        self._prompts = Prompts(lambda hidden: next(self._prompt_logits))
        self._seats = self._new_seats()
        self._moves: list[Move] = []  # of pages, before the next step
        self._drafting = self._new_drafting()

    def _new_drafting(self) -> Drafting | None:
        config, settings = self._config, self._config.speculation
        if settings is None:
            return None
        speculator = Speculator(settings)
        if settings.model is not None:
            drafter = DeviceDrafter(self._draft)
            kind = HeadDrafts if settings.by_head else DraftModel
            speculator = kind(settings, drafter, config.page_size, config.max_num_batched_tokens)
        return Drafting(speculator, robust=self._rank.shard.size == 1)

    def _new_seats(self) -> Seats:
        return Seats(self._config.max_num_seqs, lambda answer: seed(self._sampler, answer, answer.index))

    def _launch(self, work_items: list[Work]) -> InFlightStep:
        step = self._described(work_items)
        self._workers.send(step)
        return self._rank.executor.launch(step, self._rank.changes(step))

    def _draft(self, work_items: list[Work], draws: bool) -> InFlightStep:
        """Launch a step of the draft model or the head; `draws`: with the token after each work item."""
        owners = np.arange(len(work_items) if draws else 0, dtype=np.int32)
        step = replace(self._described(work_items), owners=owners, drafts=none(), adapters=none(), by_draft_model=True)
        if self._config.speculation is not None and self._config.speculation.by_head:
            step = replace(step, tokens=np.array(following(work_items), np.int32))
        self._workers.send(step)
        return self._rank.executor_of(step).launch(step)

    def _described(self, work_items: list[Work], *, chosen_by_host: bool = False) -> DeviceStep:
        scheduler = self._scheduler
        copies = scheduler.take_copies()
        moves, self._moves = [*self._moves, *scheduler.take_moves()], []
        return self._seats.describe(work_items, copies, moves, chosen_by_host)

    def _ahead(self, work_items: list[Work]) -> list[TokenOutput]:
        """Launch a step, and return the outputs of the one before it."""
        flight = self._launch(work_items) if work_items else None
        outputs = self._settle()
        if flight is not None:
            self._scheduler.advance(work_items)
            self._flight = flight
        return outputs

    def _verified(self, work_items: list[Work]) -> list[TokenOutput]:
        """Launch a step that may have draft tokens, wait for it, and return its outputs. No other step is on its way."""
        tokens = iter(self._launch(work_items).tokens())
        results = [
            answered(work, [[next(tokens)] for _ in range(work.drafts + 1)]) if work.samples else ()
            for work in work_items
        ]
        return self._committed(work_items, results)

    def _committed(self, work_items: list[Work], results: Results) -> list[TokenOutput]:
        outputs = self._scheduler.commit(work_items, results)
        if self._drafting is not None:
            for origin, target in self._scheduler.copies:
                self._drafting.speculator.copied(origin, target)
        return outputs

    def _settle(self) -> list[TokenOutput]:
        if self._flight is None:
            return []
        flight, self._flight = self._flight, None
        return self._scheduler.settle(flight.tokens())

    def _together(self, work_items: list[Work]) -> list[TokenOutput]:
        """Run a step whose tokens the host chooses: wait for its results, and for those of the step before it."""
        step = self._described(work_items, chosen_by_host=True)
        self._workers.send(step)
        landed = self._rank.executor.compute(step, self._rank.changes(step))
        outputs = self._settle()
        self._take_prompts(work_items, landed)
        ending = [work for work in work_items if work.samples]
        results, token_logprobs = choose(ending, landed, self._rank.executor.state, self._sampler)
        answers = {id(work): result for work, result in zip(ending, results, strict=True)}
        outputs_of_step = self._committed(work_items, [answers.get(id(work), ()) for work in work_items])
        outputs += [
            replace(self._prompts.complete(output), logprobs=token_logprobs.get((output.request_id, output.index)))
            for output in outputs_of_step
        ]
        return outputs

    def _take_prompts(self, work_items: list[Work], landed: StepLogits) -> None:
        if self._prompts.collects_any(work_items):
            self._prompt_logits = landed.prompt_logits
            self._prompts.take(work_items, landed.hidden)

    def _keep_adapters(self) -> None:
        """Let every rank have the adapters that this one holds, and no others."""
        self._rank.adapters = self._adapters.numbered()
        self._workers.keep_adapters(self._rank.adapters)

    def _in_use(self) -> set[str]:
        open_ones = (*self._scheduler.running, *self._scheduler.waiting)
        return {name for one in open_ones if (name := one.request.adapter) is not None}

    def _forget(self, request_id: str, index: int) -> None:
        if index == 0:
            self._prompts.forget(request_id)
        self._sampler.forget(request_id, index)
        if self._drafting is not None:
            self._drafting.speculator.forget(request_id, index)

    @torch.inference_mode()
    def _warm_up(self) -> None:
        seats = self._new_seats()

        def forward(work_items: list[Work]) -> torch.Tensor:
            step = seats.describe(work_items, chosen_by_host=True)
            self._workers.send(step)
            return self._rank.executor.compute(step).logits

        warm_up(OverlapScheduler(self._scheduler.limits), self._config.model, self.vocab_size, forward)
