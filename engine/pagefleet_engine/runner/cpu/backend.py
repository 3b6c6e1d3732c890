"""Brings up a model that transformers computes: refuses settings that do not go with it, sizes its memory, checks its answers."""

from __future__ import annotations

from pathlib import Path

import torch

from pagefleet_engine.core.requests import EngineConfig, EngineRequest, SamplingParams
from pagefleet_engine.core.sequence import TokenSequence
from pagefleet_engine.core.work import Work
from pagefleet_engine.model.backend.loading import BACKEND, Checkpoint
from pagefleet_engine.model.backend.model import TransformersModel
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.runner.common import machine
from pagefleet_engine.runner.common.stats import longest
from pagefleet_engine.runner.cpu import batch, memory
from pagefleet_kernels.cpu import Operations

PACKAGE_BYTES = 192 << 20  # what importing transformers takes
# Of a state's length: what float32 sums in another order come to is a thousandth of it.
TOLERANCE = 1e-3


def load(config: EngineConfig, folder: Path, operations: Operations) -> tuple[TransformersModel, int, int]:
    """Return the model, the most tokens of a request, and the KV pages. Raises ModelError."""
    _check(config)
    checkpoint = Checkpoint(folder)
    length = longest(config, checkpoint.max_position(config.max_model_len))
    checkpoint.check_length(length)
    limit = machine.memory_limit() - PACKAGE_BYTES
    needed = 4 * checkpoint.parameters() + memory.RESERVE_BYTES
    if needed > limit:
        raise ModelError(
            "spec.resources.memory",
            f"{limit >> 20} MiB do not hold the {needed >> 20} MiB that loading {checkpoint.kind} {BACKEND} takes: "
            "4 bytes a weight",
        )
    model = TransformersModel(checkpoint, length, operations)
    size = model.page_bytes(config.page_size, memory.KV_BYTES[memory.kv_dtype(config)])
    pages = memory.pages(config, size, model.weight_bytes, length, limit)
    _compare(model, config.page_size, length)
    return model, length, pages


def _check(config: EngineConfig) -> None:
    if config.quantization != "none":
        raise ModelError(
            "spec.model.quantization", f"{config.quantization!r} is not supported {BACKEND}; supported: none"
        )
    if config.adapters:
        raise ModelError("spec.model.adapters", f"LoRA adapters are not supported {BACKEND}")
    if config.speculation is not None and config.speculation.model is not None:
        raise ModelError("spec.model.speculation.model", f"a draft model is not supported {BACKEND}; supported: ngram")


@torch.inference_mode()
def _compare(model: TransformersModel, page_size: int, length: int) -> None:
    """Compare two short sequences, batched and in two chunks, with transformers' own attention over each. Raises ModelError.

    It finds any other state that a model keeps between tokens, and any other use of a token's place in its row.
    """
    counts = [min(count, length) for count in (page_size + 3, 7)]
    texts = [
        [(place * (7 + one) + 3 * one) % model.config.vocab_size for place in range(count)]
        for one, count in enumerate(counts)
    ]
    sequences, used = [], 0
    for index, tokens in enumerate(texts):
        request = EngineRequest(str(index), tuple(tokens), SamplingParams(1), 0.0)
        sequence = TokenSequence(request, 0, b"", list(tokens))
        sequence.pages = list(range(used, used + -(-len(tokens) // page_size)))
        used += len(sequence.pages)
        sequences.append(sequence)
    cache = model.pages(used, page_size, torch.float32)
    parts: list[list[torch.Tensor]] = [[] for _ in texts]
    try:
        expected = [model.whole(torch.tensor(tokens)) for tokens in texts]
        for half in range(2):
            work_items = []
            for sequence, tokens in zip(sequences, texts, strict=True):
                middle = len(tokens) // 2
                work_items.append(Work(sequence, half * middle, len(tokens) - middle if half else middle))
            ids, laid_out = batch.lay_out(work_items, page_size)
            states = torch.split(model.forward(ids, laid_out, cache), [work.count for work in work_items])
            for part, state in zip(parts, states, strict=True):
                part.append(state)
    except Exception as error:  # the code of any model of transformers runs here
        raise _differs(model, repr(error)) from error
    for part, state in zip(parts, expected, strict=True):
        apart = float((torch.cat(part) - state).norm(dim=1).max() / state.norm(dim=1).mean())
        if not apart <= TOLERANCE:
            raise _differs(model, f"a batch of two changes its states by {apart:.2g} of their length")


def _differs(model: TransformersModel, fault: str) -> ModelError:
    kind = model.config.kind
    return ModelError(
        SOURCE, f"model_type {kind!r} is not supported {BACKEND}: over KV pages it is not what it is without ({fault})"
    )
