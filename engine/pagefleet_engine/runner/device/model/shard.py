"""Cuts out the part of a model that one rank holds; sums and gathers between ranks. Megatron-LM (Shoeybi et al., 2019).

Q, K, V, gate and up are cut by output rows, attention's and the MLP's output by input columns: each half of a layer
needs one sum over the ranks. The output matrix is cut by rows of the vocabulary and its logits are gathered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import distributed

from pagefleet_engine.model.adapters import Part
from pagefleet_engine.model.checkpoint.config import ModelConfig
from pagefleet_engine.model.checkpoint.errors import ModelError

FIELD = "spec.resources.accelerator.count"


@dataclass(frozen=True)
class Shard:
    """Rank `rank` of `size`. The collectives run on torch.distributed's default group; one rank needs none."""

    rank: int = 0
    size: int = 1

    def config(self, model: ModelConfig) -> ModelConfig:
        """The shape of this rank's part. Raises ModelError when the model cannot be cut so."""
        for name in ("heads", "kv_heads", "intermediate_size"):
            if getattr(model, name) % self.size:
                raise ModelError(FIELD, f"{self.size} GPUs cannot share the model's {name} of {getattr(model, name)}")
        if self.size > 1 and model.options.whole_qk_norm:
            raise ModelError(
                FIELD, f"{self.size} GPUs cannot share a {model.kind} model: its norms are of all heads together"
            )
        if (experts := model.options.experts) is not None and (
            experts.inner % self.size or experts.shared_inner % self.size
        ):
            raise ModelError(FIELD, f"{self.size} GPUs cannot share the model's experts of {experts.inner}")
        return replace(
            model, heads=model.heads // self.size, kv_heads=model.kv_heads // self.size,
            intermediate_size=model.intermediate_size // self.size,
        )  # fmt: skip

    def cut(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's equal part along `dim`: a view, of which nothing else is read from the file."""
        part = tensor.shape[dim] // self.size
        return tensor.narrow(dim, self.rank * part, part)

    def part(self, product: str, whole: Part) -> Part:
        """This rank's part of an adapter's change of a merged product: what it adds, or a summand of it."""
        if product in ("out", "down"):  # their inputs are shared, and their outputs are summed
            return replace(whole, down=self.cut(whole.down, 1))
        return replace(whole, up=self.cut(whole.up, 0), begin=whole.begin // self.size)

    def rows(self, count: int) -> tuple[int, int]:
        """Begin and end of this rank's rows of a matrix of `count`; the last rank's may be fewer."""
        part = -(-count // self.size)
        return min(self.rank * part, count), min((self.rank + 1) * part, count)

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        """x summed over the ranks, in place."""
        if self.size > 1:
            distributed.all_reduce(x)
        return x

    def gathered(self, x: torch.Tensor, width: int) -> torch.Tensor:
        """[rows, width] of every rank's columns [rows, part], the same on all of them."""
        if self.size == 1:
            return x
        part = -(-width // self.size)
        if x.shape[1] < part:
            x = torch.nn.functional.pad(x, (0, part - x.shape[1]))
        parts = [x.new_empty(x.shape[0], part) for _ in range(self.size)]
        distributed.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=1)[:, :width].contiguous()

    def least(self, value: int, device: torch.device) -> int:
        """The smallest of the ranks' values."""
        if self.size == 1:
            return value
        held = torch.tensor(value, dtype=torch.int64, device=device)
        distributed.all_reduce(held, op=distributed.ReduceOp.MIN)
        return int(held)
