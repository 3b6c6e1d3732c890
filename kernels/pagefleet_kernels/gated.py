"""The activation of a gated MLP (Shazeer, 2020) on a merged projection: silu(gate) * up, and others.

Floor: 2 * n * inner elements are read and n * inner written, so 3 * n * inner * itemsize bytes; about 6 flops and one
exponential an element, below what the bytes cost. Nothing is materialised between the two factors.

Tolerance against the reference: float32 1e-5; fp16 2e-3; bf16 1.5e-2.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import torch
from torch.nn import functional

from pagefleet_kernels.launch.language import jit, runs_on, tl

COLUMNS = 1024  # of one program


def gated(gate_up: torch.Tensor, activation: str = "silu") -> torch.Tensor:
    """gate_up [n, 2 * inner], gate first -> [n, inner] of its dtype, by one of pagefleet_kernels.cpu.ACTIVATIONS."""
    return gated_triton(gate_up, activation) if runs_on(gate_up) else gated_reference(gate_up, activation)


def gated_reference(gate_up: torch.Tensor, activation: str = "silu") -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    if activation == "gelu_tanh":
        return functional.gelu(gate, approximate="tanh") * up
    if activation == "clamped_swiglu":
        gate = gate.clamp(max=7.0)
        return (up.clamp(-7.0, 7.0) + 1) * (gate * torch.sigmoid(gate * 1.702))
    return functional.silu(gate) * up


def gated_triton(gate_up: torch.Tensor, activation: str = "silu") -> torch.Tensor:
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, inner, dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        grid = (rows, -(-inner // COLUMNS))
        _kernel[grid](
            gate_up, out, *gate_up.stride(), out.stride(0), inner, GELU=activation == "gelu_tanh",
            CLAMPED=activation == "clamped_swiglu", BLOCK=COLUMNS,
        )  # fmt: skip
    return out


@jit
def _kernel(
    gate_up, out, in_row, in_column, out_row, inner, GELU: tl.constexpr, CLAMPED: tl.constexpr, BLOCK: tl.constexpr
):
    """One program per row and COLUMNS of the output."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < inner
    gate = tl.load(gate_up + row * in_row + columns * in_column, mask=inside, other=0.0)
    up = tl.load(gate_up + row * in_row + (columns + inner) * in_column, mask=inside, other=0.0)
    wide, factor = gate.to(tl.float32), up.to(tl.float32)
    if CLAMPED:  # gpt-oss
        wide = tl.minimum(wide, 7.0)
        factor = tl.minimum(tl.maximum(factor, -7.0), 7.0) + 1.0
        activated = wide / (1.0 + tl.exp(tl.minimum(-1.702 * wide, 80.0)))
    elif GELU:  # (1 + tanh u) / 2 = 1 / (1 + exp(-2 u))
        u = 0.7978845608028654 * (wide + 0.044715 * wide * wide * wide)
        activated = wide / (1.0 + tl.exp(tl.minimum(-2.0 * u, 80.0)))
    else:
        activated = wide / (1.0 + tl.exp(-wide))
    activated = activated.to(gate.dtype).to(tl.float32)
    tl.store(out + row * out_row + columns, (activated * factor).to(gate.dtype), mask=inside)
