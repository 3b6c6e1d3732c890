"""Runs the first forward passes of an engine that was loaded or woken: a prompt and one token. /ready needs them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pagefleet_engine.core.requests import EngineRequest, SamplingParams
from pagefleet_engine.core.scheduler import Scheduler
from pagefleet_engine.core.work import Work
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError

MAX_PROMPT_TOKENS = 8


def warm_up(scheduler: Scheduler, model: str, vocab_size: int, forward: Callable[[list[Work]], torch.Tensor]) -> None:
    """Compute a prompt and a token with a `scheduler` of their own, so that the engine's pool has no trace of them.

    `forward` computes a step's work and returns logits [1, vocab_size]. Raises ModelError when one is not finite.
    """
    bounds = scheduler.limits
    count = min(MAX_PROMPT_TOKENS, bounds.capacity - 1, bounds.max_model_len - 1)
    prompt = tuple(index % vocab_size for index in range(1, count + 1))
    scheduler.add(EngineRequest("warm-up", prompt, SamplingParams(max_tokens=2, ignore_eos=True), 0.0))
    while work_items := scheduler.schedule(0.0):
        logits = forward(work_items)
        if not bool(logits.isfinite().all()):
            raise ModelError(SOURCE, f"{model!r}: the model's output is not finite; its weights are damaged")
        scheduler.commit(work_items, [((int(logits[0].argmax()),),) if work.samples else () for work in work_items])
