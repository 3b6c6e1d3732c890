"""What an engine asks of a model, whoever computes its layers."""

from __future__ import annotations

from typing import Protocol

import torch

from pagefleet_engine.model.adapters import Applied
from pagefleet_kernels.cpu import Batch, KVPages


class Shape(Protocol):
    """Sizes in elements; `max_position` in tokens. kind: config.json's `model_type`."""

    @property
    def kind(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def max_position(self) -> int: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...


class Tap(Protocol):
    """Takes states from between the layers of a forward pass."""

    def take(self, layer: int, x: torch.Tensor) -> None:
        """Take x [n, hidden] float32, which enters `layer`. It changes once this returns."""


class Model(Protocol):
    """A model on the CPU. `implementation`: pagefleet or transformers, whose code computes it."""

    implementation: str

    @property
    def config(self) -> Shape: ...

    def pages(self, count: int, page_size: int, dtype: torch.dtype) -> list[KVPages]:
        """Return a KV pool, one entry per layer. Raises ValueError for sizes that the layout cannot hold."""

    def forward(
        self,
        tokens: torch.Tensor,
        batch: Batch,
        cache: list[KVPages],
        adapters: Applied | None = None,
        only: torch.Tensor | None = None,
        tap: Tap | None = None,
    ) -> torch.Tensor:
        """Return the last hidden states [n, hidden] float32 of tokens [n] int64, or of the rows `only` [m] int64.

        The cache is written in place. `tap` sees all rows before each layer.
        """

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return new logits [rows, vocab] float32 of last hidden states [rows, hidden]."""
