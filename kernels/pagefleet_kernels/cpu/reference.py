"""The CPU's operations in plain torch. The compiled ones are tested against these, and other CPUs run these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from pagefleet_kernels.cpu.layout import (
    FINE_GROUP,
    GROUP,
    Attention,
    Batch,
    Coded,
    DenseLayer,
    DenseLayers,
    Draw,
    Experts,
    KVPages,
    Norm,
    Weight,
    floats,
)


def quantise(x: torch.Tensor, group: int = GROUP) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, k] -> int8 [rows, groups, group] (zeros after k) and scales [rows, groups] of symmetric rounding."""
    grouped = functional.pad(x, (0, -x.shape[1] % group)).view(x.shape[0], -1, group)
    most = grouped.abs().amax(dim=2)
    # A tensor is divided: 127.0 / most would be 127 times a rounded reciprocal, and not what the compiled ones compute.
    inverse = torch.where(most > 0, torch.tensor(127.0) / most, torch.zeros_like(most))
    return (grouped * inverse.unsqueeze(2)).round_().to(torch.int8), most / 127.0


def dequantise(x: torch.Tensor, group: int = GROUP) -> torch.Tensor:
    """Return x [rows, k] as `quantise` rounds it."""
    values, scales = quantise(x, group)
    return (values * scales.unsqueeze(2)).view(x.shape[0], -1)[:, : x.shape[1]]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return functional.rms_norm(x, (x.shape[-1],), weight, epsilon)


def gated(x: torch.Tensor, activation: str) -> torch.Tensor:
    """One of ACTIVATIONS of the halves of x [rows, 2 inner] -> [rows, inner]."""
    first, second = x.chunk(2, dim=-1)
    match activation:
        case "silu":
            return functional.silu(first).mul_(second)
        case "gelu_tanh":
            return functional.gelu(first, approximate="tanh").mul_(second)
        case "clamped_swiglu":
            first = first.clamp(max=7.0)
            return (second.clamp(-7.0, 7.0) + 1) * (first * torch.sigmoid(first * 1.702))
        case _:
            raise ValueError(f"activation {activation!r}")


@dataclass(frozen=True)
class ReferenceLinear:
    """A product whose weight is prepared. `group` is int8's, 0 for none; `gated` names the activation after it."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    group: int
    gated: str

    def __call__(self, x: torch.Tensor, into: torch.Tensor | None = None, norm: Norm | None = None) -> torch.Tensor:
        normed = rms_norm(x, *norm) if norm else x
        rounded = dequantise(normed, self.group) if self.group else normed
        product = functional.linear(rounded, self.weight, self.bias)
        return product if into is None else into.add_(product)


class Reference:
    """Operations on any CPU that torch runs on. int8 is computed in float32 from rounded values."""

    name = "reference"
    instructions = ""
    threads = 1  # torch has its own

    def linear(
        self,
        weight: Weight,
        bias: torch.Tensor | None,
        int8: bool,
        group: int = GROUP,
        gated: str = "",
    ) -> ReferenceLinear:
        matrix = floats(weight)
        if int8 and isinstance(weight, Coded) and weight.kept_by_int8:
            group = FINE_GROUP
        elif int8:
            matrix = dequantise(matrix, group)
        return ReferenceLinear(matrix, bias, group if int8 else 0, gated)

    def mlp(
        self, x: torch.Tensor, norm: Norm | None, gate_up: ReferenceLinear, down: ReferenceLinear, add: bool = True
    ) -> torch.Tensor:
        return down(self.gated(gate_up(x, norm=norm), gate_up.gated), into=x if add else None)

    def experts(self, gate_up: Sequence[ReferenceLinear], down: Sequence[ReferenceLinear]) -> Experts:
        def apply(x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            y = torch.zeros_like(x)
            for expert in sorted(set(chosen.flatten().tolist())):
                rows, places = torch.where(chosen == expert)
                y[rows] += weights[rows, places, None] * self.mlp(x[rows], None, gate_up[expert], down[expert], False)
            return y

        return apply

    def layers(self, layers: Sequence[DenseLayer]) -> DenseLayers:
        def apply(x: torch.Tensor, pages: Sequence[KVPages], batch: Batch) -> None:
            for layer, own in zip(layers, pages, strict=False):
                qkv = layer.qkv(x, norm=layer.attention_norm).view(x.shape[0], -1, own.values.shape[3])
                self.rope_write(qkv, layer.tables, layer.head_norms, own, batch)
                layer.out(self.attend(qkv, own, batch, layer.attention), into=x)
                self.mlp(x, layer.mlp_norm, layer.gate_up, layer.down)

        return apply

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        return rms_norm(x, weight, epsilon)

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        return gated(x, activation)

    def rope_write(
        self,
        qkv: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        norms: tuple[torch.Tensor, torch.Tensor, float] | None,
        pages: KVPages,
        batch: Batch,
    ) -> None:
        kv_heads = pages.values.shape[1]
        rotated = qkv.shape[1] - kv_heads
        if norms is not None:
            q_norm, k_norm, epsilon = norms
            heads = rotated - kv_heads
            qkv[:, :heads] = self.rms_norm(qkv[:, :heads], q_norm, epsilon)
            qkv[:, heads:rotated] = self.rms_norm(qkv[:, heads:rotated], k_norm, epsilon)
        cos, sin = (table[batch.positions.long()].unsqueeze(1) for table in tables)
        low, high = qkv[:, :rotated].chunk(2, dim=-1)
        qkv[:, :rotated] = torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
        page, within = batch.slots.long() // pages.page_size, batch.slots.long() % pages.page_size
        lanes = pages.keys.shape[-1]
        pages.keys[page, :, within // lanes, :, within % lanes] = qkv[:, rotated - kv_heads : rotated].to(
            pages.keys.dtype
        )
        pages.values[page, :, within] = qkv[:, rotated:].to(pages.values.dtype)

    def attend(self, qkv: torch.Tensor, pages: KVPages, batch: Batch, attention: Attention) -> torch.Tensor:
        kv_heads, head_dim = pages.values.shape[1], qkv.shape[2]
        heads = qkv.shape[1] - 2 * kv_heads
        out = qkv.new_empty(qkv.shape[0], heads, head_dim)
        bounds = batch.first.tolist()
        for index, context in enumerate(batch.context.tolist()):
            begin, end = bounds[index], bounds[index + 1]
            used = batch.table[index, : -(-context // pages.page_size)].long()
            keys = pages.keys[used].permute(1, 0, 2, 4, 3).reshape(kv_heads, -1, head_dim)[:, :context]
            values = pages.values[used].transpose(0, 1).reshape(kv_heads, -1, head_dim)[:, :context]
            position = torch.arange(context - (end - begin), context).unsqueeze(1)
            positions = torch.arange(context).unsqueeze(0)
            mask = positions <= position
            if attention.window:
                mask &= positions > position - attention.window
            query = qkv[begin:end, :heads].transpose(0, 1)
            out[begin:end] = _attended(query, keys.float(), values.float(), mask, attention).transpose(0, 1)
        return out.view(qkv.shape[0], -1)

    def sample(self, logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
        return [_drawn(logits[draw.row], draw) for draw in draws]


def _attended(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, attention: Attention
) -> torch.Tensor:
    """query [heads, n, head_dim], keys and values [kv_heads, context, head_dim], mask [n, context] -> as query."""
    if not attention.cap and attention.sinks is None:
        return functional.scaled_dot_product_attention(
            query.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask, scale=attention.scale,
            enable_gqa=True,
        ).squeeze(0)  # fmt: skip
    group = query.shape[0] // keys.shape[0]
    scores = query @ keys.repeat_interleave(group, 0).transpose(1, 2) * attention.scale
    if attention.cap:
        scores = torch.tanh(scores / attention.cap) * attention.cap
    scores = scores.masked_fill(~mask, -torch.inf)
    if attention.sinks is not None:
        sinks = attention.sinks.view(-1, 1, 1).expand(*scores.shape[:2], 1)
        weights = torch.cat((scores, sinks), dim=-1).softmax(dim=-1)[..., :-1]
    else:
        weights = scores.softmax(dim=-1)
    return weights @ values.repeat_interleave(group, 0)


def _drawn(logits: torch.Tensor, draw: Draw) -> int:
    """Draw a token; the largest logit where there is no distribution, as the compiled ones do: see source/sampling.h."""
    likeliest = int(logits.argmax())  # of a number and a NaN this returns NaN
    if bool(logits[likeliest].isnan()):
        return int(logits.nan_to_num(-torch.inf, torch.inf, -torch.inf).argmax())
    if draw.temperature <= 0:
        return likeliest
    top = logits[likeliest] * (torch.tensor(1.0) / torch.tensor(draw.temperature))
    if not bool(top.isfinite()):
        return likeliest
    scores = logits.double() / draw.temperature
    probabilities, ids = (scores - scores.max()).exp().sort(descending=True, stable=True)
    if draw.top_k > 0:
        probabilities, ids = probabilities[: draw.top_k], ids[: draw.top_k]
    if draw.top_p < 1:
        before = probabilities.cumsum(0) - probabilities
        remaining = before < draw.top_p * probabilities.sum()
        probabilities, ids = probabilities[remaining], ids[remaining]
    if draw.min_p > 0:
        remaining = probabilities >= draw.min_p
        probabilities, ids = probabilities[remaining], ids[remaining]
    if not len(ids):
        return likeliest
    ids, order = ids.sort()
    reached = probabilities[order].cumsum(0)
    place = int(torch.searchsorted(reached, draw.uniform * reached[-1], right=True))
    return int(ids[min(place, len(ids) - 1)])
