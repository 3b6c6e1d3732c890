"""An EAGLE-3 head on a device: one rank's part of it, and the served model's states that it reads. See model/heads/head.py."""

from __future__ import annotations

import torch
from torch.nn import functional

from pagefleet_engine.model import rope
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.heads.config import TAPS
from pagefleet_engine.model.heads.weights import EMBEDDING, HeadFiles
from pagefleet_engine.runner.device.model.mlp import dense
from pagefleet_engine.runner.device.model.model import AttentionLayer, DeviceDecoder, Layout, Pool, attend, write
from pagefleet_engine.runner.device.model.shard import Shard
from pagefleet_engine.runner.device.model.weights import Cut, Reader
from pagefleet_kernels.kernels import Kernels


class StatePool:
    """One state for each slot of the KV pages, and one more, where padding writes. Every rank has all of them."""

    def __init__(self, pages: int, page_size: int, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        self.pages = pages
        self._slots = torch.zeros(pages * page_size + 1, hidden, dtype=dtype, device=device)
        self.memory = self._slots[:-1].view(1, pages, page_size, hidden)  # as Pool's

    def write(self, slots: torch.Tensor, states: torch.Tensor) -> None:
        """Keep states [n, hidden] at slots [n]; -1: nowhere."""
        self._slots.index_copy_(0, torch.where(slots < 0, len(self._slots) - 1, slots).long(), states)

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """Return the states [n, hidden] at slots [n]."""
        return self._slots.index_select(0, slots.long())


class DeviceHead:
    """`layers` of the served model are those whose inputs it reads. Its vectors are of the served model's dtype.

    Raises ModelError for tensors that are missing, of a wrong shape, not of a head, or that the ranks cannot share.
    """

    def __init__(
        self, files: HeadFiles, reader: Reader, served: DeviceDecoder, layers: tuple[int, ...], shard: Shard,
        positions: int, kernels: Kernels,
    ) -> None:  # fmt: skip
        self.config, self.layers, self._shard, self._kernels = files.config, layers, shard, kernels
        self._dtype, self._device = served.dtype, served.device
        reader.dtype = served.dtype
        shape = files.config.shape
        self._own = shard.config(shape)
        hidden, heads = shape.hidden_size, {"q_proj": shape.q_size, "k_proj": shape.kv_size, "v_proj": shape.kv_size}

        def norm(name: str) -> torch.Tensor:
            return reader.norm(f"{name}.weight", hidden, wide=False)

        self._embedding = reader.whole(EMBEDDING, shape.vocab_size, hidden) if files.embeds else served.embedding
        self._fc = reader.whole("fc.weight", hidden, TAPS * files.config.target_hidden_size)
        self._token_norm, self._state_norm = norm("layer.input_layernorm"), norm("layer.hidden_norm")
        cos, sin = rope.tables(shape, positions)[0]
        self._layer = AttentionLayer(tables=(cos.to(self._device), sin.to(self._device)))
        self._qkv = reader.merged("layer.self_attn.", heads, 2 * hidden, Cut.ROWS)
        self._out = reader.merged("layer.self_attn.", {"o_proj": hidden}, shape.q_size, Cut.COLUMNS)
        self._mlp_norm = norm("layer.post_attention_layernorm")
        self._mlp = dense(reader, "layer.mlp.", shape, shape.intermediate_size)
        self._norm = norm("norm")
        self._head = reader.head(files.config.draft_vocab_size, hidden)
        self._tokens = files.tokens.to(self._device)
        if left := reader.left():
            raise ModelError(SOURCE, f"{len(left)} tensors are not of an EAGLE-3 head, the first is {left[0]}")

    def pool(self, pages: int, page_size: int, dtype: torch.dtype) -> Pool:
        return Pool(self._own, pages, page_size, dtype, self._device)

    def states(self, pages: int, page_size: int) -> StatePool:
        return StatePool(pages, page_size, self.config.shape.hidden_size, self._dtype, self._device)

    def page_bytes(self, page_size: int, dtype: torch.dtype) -> int:
        """Keys and values of one page, on this rank."""
        return 2 * self._own.kv_size * page_size * dtype.itemsize

    def state_bytes(self, page_size: int) -> int:
        """The states of one page."""
        return self.config.shape.hidden_size * page_size * self._dtype.itemsize

    def outputs(self, rows: int) -> torch.Tensor:
        """Return room for the outputs [rows, hidden] of earlier positions."""
        return torch.zeros(rows, self.config.shape.hidden_size, dtype=self._dtype, device=self._device)

    def joined(self, states: list[torch.Tensor]) -> torch.Tensor:
        """The inputs [n, hidden] of the served model's `layers` -> the states [n, hidden] that the head reads."""
        return functional.linear(torch.cat(states, dim=1), self._fc)

    def write(self, layout: Layout, states: torch.Tensor, pool: Pool) -> None:
        """Write the keys and values of positions, of the tokens of `layout` behind them and their states [n, hidden]."""
        qkv, _ = self._entered(layout, states)
        write(self._own, self._kernels, self._layer, qkv, layout, pool, 0)

    def forward(self, layout: Layout, states: torch.Tensor, pool: Pool, only: torch.Tensor) -> torch.Tensor:
        """As `write`; return the outputs [m, hidden] of the rows `only` [m] int64, before the last norm."""
        qkv, residual = self._entered(layout, states)
        attended = attend(self._own, self._kernels, self._layer, qkv, layout, pool, 0).index_select(0, only)
        x = self._shard.summed(self._out(attended))
        eps = self.config.shape.norm_eps
        normed, x = self._kernels.rms_norm(x, self._mlp_norm, eps, residual.index_select(0, only))
        inner = self._kernels.gated(self._mlp.gate_up(normed), "silu")
        return x + self._shard.summed(self._mlp.down(inner))

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """[rows, vocab] of the served model's vocabulary; tokens that the head cannot propose have minus infinity."""
        normed = self._kernels.rms_norm(outputs, self._norm, self.config.shape.norm_eps)[0]
        own = self._shard.gathered(functional.linear(normed, self._head), self.config.draft_vocab_size)
        logits = own.new_full((len(outputs), self.config.shape.vocab_size), float("-inf"))
        return logits.index_copy_(1, self._tokens, own)

    def _entered(self, layout: Layout, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries, keys and values [n, all heads], and the residual [n, hidden]."""
        eps = self.config.shape.norm_eps
        normed = self._kernels.rms_norm(states, self._state_norm, eps)[0]
        embedded = self._kernels.rms_norm(functional.embedding(layout.tokens, self._embedding), self._token_norm, eps)[
            0
        ]
        qkv = self._qkv(torch.cat((embedded, normed), dim=1))
        return qkv, normed if self.config.norm_before_residual else states
