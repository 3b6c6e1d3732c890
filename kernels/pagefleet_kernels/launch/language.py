"""Triton where it is installed (extra `cuda`), and whether a kernel runs on a tensor. References need none of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

__all__ = ["FP8_MAX", "INTERPRETED", "jit", "jit_varying", "power_of_two", "runs_on", "tl", "to_fp8", "triton"]

# Triton's interpreter runs kernels on the CPU in numpy: exact for float32, wrong for bfloat16 products.
FP8_MAX = 448.0  # the largest finite float8_e4m3fn
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def jit(function: Callable[..., Any], varying: Sequence[str] = ()) -> Any:
    """triton.jit, or the function itself where there is no Triton: it is then never called."""
    return function if triton is None else triton.jit(function, do_not_specialize=list(varying))


def jit_varying(*names: str) -> Callable[[Callable[..., Any]], Any]:
    """Compile a kernel whose integers of these names differ from step to step. New values must not compile it again."""
    return lambda function: jit(function, names)


def runs_on(tensor: torch.Tensor) -> bool:
    """Whether the Triton kernel of an op takes this tensor; otherwise the op uses its torch reference."""
    return triton is not None and tensor.is_cuda and not INTERPRETED


def power_of_two(number: int, least: int = 1) -> int:
    """Return the smallest power of two that is at least `number` and `least`: Triton's blocks have such sizes."""
    return max(least, 1 << (number - 1).bit_length())


@jit
def to_fp8(x, WIDEN: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """x as float8_e4m3fn, saturated. With WIDEN (the interpreter, whose own rounding loses the carry into the exponent)
    it is rounded to E4M3's grid first: three bits of mantissa, steps of 2^-9 below 2^-6.
    """
    x = tl.minimum(tl.maximum(x.to(tl.float32), -448.0), 448.0)
    if WIDEN:
        bits = x.to(tl.int32, bitcast=True)
        normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & ~0xFFFFF).to(tl.float32, bitcast=True)
        x = tl.where(tl.abs(x) < 0.015625, (x + 24576.0) - 24576.0, normal)
    return x.to(tl.float8e4nv)
