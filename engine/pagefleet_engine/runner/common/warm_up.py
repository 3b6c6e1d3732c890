"""The first steps of an engine that was loaded or woken: a prompt and a token after it, which is what /ready stands for."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pagefleet_engine.core.requests import EngineRequest, SamplingParams
from pagefleet_engine.core.scheduler import Scheduler
from pagefleet_engine.core.work import Work
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError

LONGEST = 8  # tokens of the prompt


def rehearse(scheduler: Scheduler, model: str, vocab_size: int, forward: Callable[[list[Work]], torch.Tensor]) -> None:
    """`scheduler` is one of its own, so that no trace is left in the engine's pool. `forward` computes a step's work and
    gives logits [1, vocab_size]. Raises ModelError when one is not finite."""
    bounds = scheduler.limits
    count = min(LONGEST, bounds.capacity - 1, bounds.max_model_len - 1)
    prompt = tuple(index % vocab_size for index in range(1, count + 1))
    scheduler.add(EngineRequest("warm-up", prompt, SamplingParams(max_tokens=2, ignore_eos=True), 0.0))
    while works := scheduler.schedule(0.0):
        logits = forward(works)
        if not bool(logits.isfinite().all()):
            raise ModelError(SOURCE, f"{model!r}: the model's output is not finite; its weights are damaged")
        scheduler.commit(works, [((int(logits[0].argmax()),),) if work.samples else () for work in works])
