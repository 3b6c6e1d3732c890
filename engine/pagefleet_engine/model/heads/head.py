"""The forward pass of an EAGLE-3 head on the CPU, over a paged KV cache of one layer.

Of position p it reads the token at p + 1 and a state of position p, and gives the logits of the token at p + 2. The state
is the served model's (three of its layers' inputs, through `fc`), or behind the last token that is known the head's own
output at the position before. With one layer, the keys and values of a position follow from its token and its state alone.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

from pagefleet_engine.model import rope
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.heads.config import TAPS
from pagefleet_engine.model.heads.weights import EMBEDDING, HeadFiles
from pagefleet_engine.model.prepare import Preparation
from pagefleet_kernels.cpu import FINE_GROUP, Attention, Batch, KVPages, Operations


class Embedding(Protocol):
    """The served model, whose embedding a head shares that has none of its own."""

    @property
    def embedding(self) -> torch.Tensor: ...


class EagleHead:
    """Weights prepared for the CPU; `layers` of the served model are those whose inputs it reads.

    Raises ModelError for tensors that are missing, of a wrong shape, or not of a head.
    """

    def __init__(
        self, files: HeadFiles, served: Embedding, layers: tuple[int, ...], int8: bool, positions: int,
        operations: Operations,
    ) -> None:  # fmt: skip
        self.config, self.layers, self._operations, self._tokens = files.config, layers, operations, files.tokens
        shape, weights = files.config.shape, files.weights
        hidden, q, kv = shape.hidden_size, shape.q_size, shape.kv_size
        made = Preparation(shape, weights, operations, int8)
        self._embedding = weights.take_stored(EMBEDDING, shape.vocab_size, hidden) if files.embeds else served.embedding
        self._fc = made.merged("", {"fc": hidden}, TAPS * files.config.target_hidden_size)
        self._token_norm, self._state_norm = made.norm("layer.input_layernorm"), made.norm("layer.hidden_norm")
        self._tables = rope.tables(shape, positions)[0]
        self._qkv = made.merged("layer.self_attn.", {"q_proj": q, "k_proj": kv, "v_proj": kv}, 2 * hidden, FINE_GROUP)
        self._attention = Attention(shape.attention_scale)
        self._out = made.merged("layer.self_attn.", {"o_proj": hidden}, q)
        self._mlp_norm = made.norm("layer.post_attention_layernorm")
        self._mlp = made.mlp("layer.mlp.", shape.intermediate_size)
        self._norm = made.norm("norm")
        self._head = made.merged("", {"lm_head": files.config.draft_vocab_size}, hidden, FINE_GROUP)
        if left := weights.left():
            raise ModelError(SOURCE, f"{len(left)} tensors are not of an EAGLE-3 head, the first is {left[0]}")

    def pages(self, count: int, page_size: int, dtype: torch.dtype) -> KVPages:
        """Return a KV pool. Raises ValueError for sizes that the layout cannot hold."""
        return KVPages.zeros(count, self.config.shape.kv_heads, page_size, self.config.shape.head_dim, dtype)

    def joined(self, states: list[torch.Tensor]) -> torch.Tensor:
        """The inputs [n, hidden] of the served model's `layers` -> the states [n, hidden] that the head reads."""
        return self._fc(torch.cat(states, dim=1))

    def write(self, tokens: torch.Tensor, states: torch.Tensor, batch: Batch, pages: KVPages) -> None:
        """Write the keys and values of positions, of the tokens [n] int64 behind them and their states [n, hidden]."""
        self._heads(tokens, states, batch, pages)

    def forward(
        self, tokens: torch.Tensor, states: torch.Tensor, batch: Batch, pages: KVPages, only: torch.Tensor
    ) -> torch.Tensor:
        """As `write`; return the outputs [m, hidden] of the rows `only` [m] int64, before the last norm."""
        heads, residual = self._heads(tokens, states, batch, pages)
        attended = self._operations.attend(heads, pages, batch, self._attention)[only]
        x = self._out(attended, into=residual[only])
        return self._operations.mlp(x, self._mlp_norm, self._mlp.gate_up, self._mlp.down)

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """[rows, vocab] of the served model's vocabulary; tokens that the head cannot propose have minus infinity."""
        logits = outputs.new_full((outputs.shape[0], self.config.shape.vocab_size), float("-inf"))
        logits[:, self._tokens] = self._head(outputs, norm=self._norm)
        return logits

    def _heads(
        self, tokens: torch.Tensor, states: torch.Tensor, batch: Batch, pages: KVPages
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries, keys and values [n, heads + 2 kv_heads, head_dim], rotated and written, and the residual [n, hidden]."""
        normed = self._operations.rms_norm(states, *self._state_norm)
        embedded = self._operations.rms_norm(functional.embedding(tokens, self._embedding).float(), *self._token_norm)
        qkv = self._qkv(torch.cat((embedded, normed), dim=1))
        heads = qkv.view(tokens.shape[0], -1, self.config.shape.head_dim)
        self._operations.rope_write(heads, self._tables, None, pages, batch)
        return heads, normed if self.config.norm_before_residual else states
