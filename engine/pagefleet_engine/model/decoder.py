"""The decoder of every family over a paged KV cache: one forward pass for a batch that mixes prompt chunks and single tokens."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch.nn import functional

from pagefleet_engine.model import rope
from pagefleet_engine.model.adapters import Applied
from pagefleet_engine.model.checkpoint.config import ModelConfig
from pagefleet_engine.model.checkpoint.weights import Weights
from pagefleet_engine.model.layers import Layer, Mixture
from pagefleet_engine.model.prepare import QUANTIZATIONS, Preparation
from pagefleet_engine.model.served import Tap
from pagefleet_kernels.cpu import Batch, KVPages, Norm, Operations

MAX_LOADERS = 4  # layers that are prepared at a time: each takes memory for the floats of a product


class Decoder:
    """Weights prepared for the CPU.

    Raises ModelError for tensors that are missing, of a wrong shape, or not of this architecture, and ValueError for
    an unknown quantisation.
    """

    implementation = "pagefleet"

    def __init__(
        self, config: ModelConfig, weights: Weights, quantization: str, positions: int, operations: Operations
    ) -> None:
        if quantization not in QUANTIZATIONS:
            raise ValueError(f"quantization {quantization!r} is not one of {', '.join(QUANTIZATIONS)}")
        self.config, self._operations = config, operations
        preparation = Preparation(config, weights, operations, int8=quantization == "int8")
        self.embedding, self._head = preparation.ends()
        self._norm = preparation.norm("model.norm")
        tables = rope.tables(config, positions)
        # Threads, because reading and converting a tensor keeps one core busy.
        with ThreadPoolExecutor(min(operations.threads, MAX_LOADERS)) as pool:
            self._layers = list(pool.map(preparation.layer, range(config.layers), tables))
        preparation.check_all_taken()
        dense = [layer.dense() for layer in self._layers]
        self._dense = operations.layers([one for one in dense if one is not None]) if None not in dense else None

    def pages(self, count: int, page_size: int, dtype: torch.dtype) -> list[KVPages]:
        """A KV pool, one entry per layer. Raises ValueError for sizes that the layout cannot hold."""
        config = self.config
        return [KVPages.zeros(count, config.kv_heads, page_size, config.head_dim, dtype) for _ in range(config.layers)]

    def forward(
        self,
        tokens: torch.Tensor,
        batch: Batch,
        cache: list[KVPages],
        adapters: Applied | None = None,
        only: torch.Tensor | None = None,
        tap: Tap | None = None,
    ) -> torch.Tensor:
        """Return the last hidden states [n, hidden] of tokens [n] int64, normalised. The cache is written in place.

        `only` [m] int64: the states of these rows are enough. The last layer then computes only these after its attention,
        unless there are adapters, which need all rows. `tap` sees all rows before each layer.
        """
        config, operations, count = self.config, self._operations, tokens.shape[0]
        x = functional.embedding(tokens, self.embedding).float()
        if config.options.embedding_scale != 1:
            x = x.mul_(config.options.embedding_scale)
        done = 0
        if self._dense is not None and not adapters and tap is None:
            done = config.layers if only is None else config.layers - 1
            self._dense(x, cache[:done], batch)
        for index, (layer, pages) in enumerate(zip(self._layers[done:], cache[done:], strict=True), done):
            if tap is not None:
                tap.take(index, x)
            if adapters:
                normed = self._normed(x, layer.attention_norm)
                qkv = layer.qkv(normed)
                adapters.add(index, "qkv", normed, qkv)
            else:
                qkv = layer.qkv(x, norm=layer.attention_norm)
            if layer.whole_norms is not None:
                self._normalise(qkv, *layer.whole_norms)
            heads = qkv.view(count, -1, config.head_dim)
            operations.rope_write(heads, layer.tables, layer.head_norms, pages, batch)
            attended = operations.attend(heads, pages, batch, layer.attention)
            if only is not None and not adapters and index == config.layers - 1:
                attended, x = attended[only], x[only]
            if layer.plain and not adapters:
                x = layer.out(attended, into=x)
                operations.mlp(x, layer.mlp_norm, layer.mlp.gate_up, layer.mlp.down)  # type: ignore[union-attr]
            else:
                self._rest(index, layer, x, attended, adapters)
        if only is not None and adapters:
            x = x[only]
        return operations.rms_norm(x, *self._norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocab] float32 of last hidden states [rows, hidden]."""
        logits, options = self._head(hidden), self.config.options
        if options.logit_scale != 1:
            logits = logits.mul_(options.logit_scale)
        if options.logit_cap:
            logits = logits.div_(options.logit_cap).tanh_().mul_(options.logit_cap)
        return logits

    def _normed(self, x: torch.Tensor, norm: Norm | None) -> torch.Tensor:
        return x if norm is None else self._operations.rms_norm(x, *norm)

    def _normalise(self, qkv: torch.Tensor, q_norm: Norm, k_norm: Norm) -> None:
        """Normalise all heads of q together, and those of k, in place."""
        q, kv = self.config.q_size, self.config.kv_size
        for norm, columns in ((q_norm, slice(0, q)), (k_norm, slice(q, q + kv))):
            qkv[:, columns] = self._operations.rms_norm(qkv[:, columns].contiguous(), *norm)

    def _rest(
        self, index: int, layer: Layer, x: torch.Tensor, attended: torch.Tensor, adapters: Applied | None
    ) -> None:
        """Add the results of attention and MLP to x: what adapters change, or what is normalised or scaled before."""
        y = layer.out(attended, into=x if layer.plain else None)
        if adapters:
            adapters.add(index, "out", attended, y)
        self._add(layer, x, y, layer.out_norm)
        normed = self._normed(x, layer.mlp_norm)
        if isinstance(layer.mlp, Mixture):
            self._add(layer, x, layer.mlp(normed), layer.mlp_out_norm)
            return
        gate_up = layer.mlp.gate_up(normed)
        if adapters:
            adapters.add(index, "gate_up", normed, gate_up)
        inner = self._operations.gated(gate_up, self.config.options.activation)
        y = layer.mlp.down(inner, into=x if layer.plain else None)
        if adapters:
            adapters.add(index, "down", inner, y)
        self._add(layer, x, y, layer.mlp_out_norm)

    def _add(self, layer: Layer, x: torch.Tensor, y: torch.Tensor, norm: Norm | None) -> None:
        if not layer.plain:  # otherwise y is x
            x.add_(self._normed(y, norm), alpha=self.config.options.residual_scale)
