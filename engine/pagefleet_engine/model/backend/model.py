"""A causal text model that transformers computes, over our KV pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pagefleet_engine.model.adapters import Applied
from pagefleet_engine.model.backend.attention import NAME, LayerShape, Learning, Paged, Unsupported, running
from pagefleet_engine.model.backend.loading import BACKEND, Checkpoint
from pagefleet_engine.model.backend.products import replace_products, weight_bytes
from pagefleet_engine.model.checkpoint.config import eos_token_ids
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.served import Tap
from pagefleet_kernels.cpu import Batch, KVPages, Operations

LEARNED_FROM = 4  # tokens


@dataclass(frozen=True)
class BackendShape:
    """See served.Shape."""

    kind: str
    vocab_size: int
    hidden_size: int
    max_position: int
    eos_token_ids: tuple[int, ...]


class TransformersModel:
    """A loaded checkpoint. Sequences are at most `length` tokens. Raises ModelError for a model that ours cannot attend for."""

    implementation = "transformers"

    def __init__(self, checkpoint: Checkpoint, length: int, operations: Operations) -> None:
        windows = checkpoint.windows()
        self._operations, self._causal = operations, checkpoint.load()
        replace_products(self._causal, operations, checkpoint.half)
        self.weight_bytes = weight_bytes(self._causal)
        try:
            self._body = _body(self._causal)
            self._given = _Given(self._body)
            path = next(path for path, module in self._causal.named_modules() if module is self._body)
            parent, _, name = path.rpartition(".")
            setattr(self._causal.get_submodule(parent), name, self._given)
            with torch.inference_mode():
                hidden, self._layers = self._learn(length, int(checkpoint.config.num_hidden_layers))
            self._check_windows(windows, length)
            with torch.inference_mode():
                width = int(self.logits(hidden).shape[1])
            if width != checkpoint.config.vocab_size:
                raise Unsupported(f"its logits are {width}, its vocab_size is {checkpoint.config.vocab_size}")
        except Exception as error:  # the code of any model of transformers runs here
            said = error if isinstance(error, Unsupported) else repr(error)
            raise ModelError(SOURCE, f"model_type {checkpoint.kind!r} is not supported {BACKEND}: {said}") from error
        self.config = BackendShape(
            checkpoint.kind,
            width,
            hidden.shape[1],
            checkpoint.max_position(length),
            eos_token_ids(checkpoint.folder, checkpoint.document),
        )

    def page_bytes(self, page_size: int, element_bytes: int) -> int:
        """Return the bytes of keys and values of one page in all layers."""
        return 2 * page_size * element_bytes * sum(one.kv_heads * one.head_dim for one in self._layers)

    def pages(self, count: int, page_size: int, dtype: torch.dtype) -> list[KVPages]:
        return [KVPages.zeros(count, one.kv_heads, page_size, one.head_dim, dtype) for one in self._layers]

    def forward(
        self,
        tokens: torch.Tensor,
        batch: Batch,
        cache: list[KVPages],
        adapters: Applied | None = None,
        only: torch.Tensor | None = None,
        tap: Tap | None = None,
    ) -> torch.Tensor:
        with running(Paged(self._layers, cache, batch, self._operations)):
            hidden = self._states(tokens, batch.positions.long())
        return hidden if only is None else hidden[only]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self._given.states = hidden.unsqueeze(0)
        tokens = torch.zeros(1, hidden.shape[0], dtype=torch.long)
        logits: torch.Tensor = self._causal(input_ids=tokens, use_cache=False).logits[0]
        return logits.float().contiguous()

    def whole(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the last hidden states [n, hidden] of one sequence, computed with transformers' own attention."""
        self._body.set_attn_implementation("eager")
        try:
            states: torch.Tensor = self._body(input_ids=tokens.unsqueeze(0), use_cache=False).last_hidden_state[0]
        finally:
            self._body.set_attn_implementation(NAME)
        return states

    def _learn(self, length: int, layers: int) -> tuple[torch.Tensor, list[LayerShape]]:
        learning = Learning(length)
        with running(learning):
            tokens = torch.arange(min(LEARNED_FROM, length))
            hidden = self._states(tokens, tokens)
        return hidden, learning.layers(layers)

    def _check_windows(self, windows: Sequence[int | None], length: int) -> None:
        """Raises Unsupported for a layer that attends to more tokens than transformers' own cache keeps for it."""
        for index, (layer, window) in enumerate(zip(self._layers, windows, strict=False)):
            if window is not None and window < length and layer.attention.window != window:
                raise Unsupported(
                    f"layer {index} has a window of {window} tokens in transformers' cache, and not in its mask"
                )

    def _states(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self._body(
            input_ids=tokens.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False
        ).last_hidden_state[0]
        return states


def _body(causal: Any) -> Any:
    """The model within a causal model, without what makes logits of its states. Raises Unsupported."""
    from transformers import PreTrainedModel

    for found in (causal.get_decoder(), causal.base_model, getattr(causal, "model", None)):
        if isinstance(found, PreTrainedModel) and found is not causal:
            return found
    raise Unsupported("its code has no model apart from its logits")


class _Given(nn.Module):
    """Stands in the place of the body: the rest of a causal model then makes logits of the `states` [1, rows, hidden]."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.config = body.config
        self.states: torch.Tensor

    def forward(self, *_: Any, **__: Any) -> _Output:
        return _Output(self.states)


class _Output:
    """What a body returns, whatever class its own is of: the states, and None for all else."""

    def __init__(self, states: torch.Tensor) -> None:
        self.last_hidden_state = states

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.last_hidden_state,)[index]
