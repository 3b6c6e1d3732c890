"""RMSNorm, SiLU*mul and rope with the page write equal their torch references on any strides and write nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from pagefleet_kernels.attention.rope_write import rope_write_reference, rope_write_triton
from pagefleet_kernels.cpu import ACTIVATIONS
from pagefleet_kernels.gated import gated, gated_reference, gated_triton
from pagefleet_kernels.rms_norm import rms_norm, rms_norm_reference, rms_norm_triton


@pytest.mark.parametrize("width", [16, 576, 1000])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rms_norm_equals_its_reference(width: int, adds: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(7, 2 * width)[:, ::2].to(dtype), torch.randn(width).to(dtype)
    residual = torch.randn(9, width)[2:].to(dtype) if adds else None
    expected = rms_norm_reference(x, weight, 1e-5, residual)
    answered = rms_norm_triton(x, weight, 1e-5, residual)
    # The interpreter cuts float32 to bfloat16 where hardware rounds: up to a unit in the last place, three times.
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 3e-2}[dtype]
    for one, other in zip(answered, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_rms_norm_is_torchs_own() -> None:
    torch.manual_seed(2)
    x, residual, weight = torch.randn(5, 96), torch.randn(5, 96), torch.randn(96)
    y, hidden = rms_norm(x, weight, 1e-6, residual)
    torch.testing.assert_close(hidden, x + residual)
    torch.testing.assert_close(y, functional.rms_norm(x + residual, (96,), weight, 1e-6))


@pytest.mark.parametrize("shape", [(1, 8), (5, 1536), (3, 1025)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_equals_its_reference(shape: tuple[int, int], activation: str) -> None:
    torch.manual_seed(3)
    rows, inner = shape
    gate_up = (torch.randn(2 * rows, 2 * inner + 3) * 20)[::2, 3:]
    exact = gated_reference(gate_up.double(), activation).float()
    rtol, atol = (1e-5, 1e-6) if gate_up.device.type == "cpu" else (1e-4, 1e-5)  # a GPU's exponentials are approximate
    torch.testing.assert_close(gated_triton(gate_up, activation), exact, rtol=rtol, atol=atol)
    torch.testing.assert_close(gated(gate_up, activation), gated_reference(gate_up, activation), rtol=rtol, atol=atol)


@pytest.mark.parametrize("head_dim", [16, 64, 80])
def test_rope_write_equals_its_reference_and_leaves_other_slots(head_dim: int) -> None:
    torch.manual_seed(4)
    tokens, heads, kv_heads = 6, 9, 3
    merged = torch.randn(tokens, heads + 2 * kv_heads, head_dim)
    q, k, v = merged.split((heads, kv_heads, kv_heads), dim=1)
    angles = torch.rand(50, head_dim // 2) * 6
    positions = torch.tensor([0, 49, 7, 7, 20, 3])
    slots = torch.tensor([5, 2, 31, -1, 0, 17], dtype=torch.int32)
    caches = [torch.full((32, kv_heads, head_dim), torch.nan) for _ in range(4)]
    rest = (angles.cos(), angles.sin(), positions, slots)
    expected = rope_write_reference(q, k, v, *rest, *caches[:2])
    answered = rope_write_triton(q, k, v, *rest, *caches[2:])
    torch.testing.assert_close(answered, expected, rtol=1e-5, atol=1e-6)
    for one, other in zip(caches[2:], caches[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)
    written = {int(slot) for slot in slots if slot >= 0}
    assert {row for row in range(32) if not caches[2][row].isnan().all()} == written
    torch.testing.assert_close(caches[3][31], v[2])


def test_a_rotation_keeps_products_of_equal_distance() -> None:
    """What rope is for: q at position p and k at p + d have the same product for every p."""
    torch.manual_seed(5)
    angles = torch.outer(torch.arange(40.0), 1 / 100 ** (torch.arange(8) / 8))
    q, k = torch.randn(1, 1, 16), torch.randn(1, 1, 16)

    def product(at: int) -> torch.Tensor:
        cache = torch.zeros(1, 1, 16)
        slot = torch.tensor([0])
        tables = (angles.cos(), angles.sin())
        rotated = rope_write_triton(q, k, k, *tables, torch.tensor([at]), slot, cache.clone(), cache.clone())
        rope_write_triton(q, k, k, *tables, torch.tensor([at + 5]), slot, cache, torch.zeros_like(cache))
        return (rotated * cache).sum()

    torch.testing.assert_close(product(3), product(30), rtol=1e-4, atol=1e-4)


def test_the_references_import_without_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import importlib, pkgutil, torch, pagefleet_kernels\n"
        "for module in pkgutil.iter_modules(pagefleet_kernels.__path__):\n"
        "    module.ispkg or importlib.import_module('pagefleet_kernels.' + module.name)\n"
        "from pagefleet_kernels.gated import gated\n"
        "from pagefleet_kernels.rms_norm import rms_norm\n"
        "gated(torch.ones(2, 4)); rms_norm(torch.ones(2, 4), torch.ones(4), 1e-5)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("head_dim", [32, 80])
def test_rope_write_normalises_heads_and_quantises(head_dim: int, fp8: bool) -> None:
    torch.manual_seed(6)
    tokens, heads, kv_heads = 3, 10, 3
    q, k, v = torch.randn(tokens, heads + 2 * kv_heads, head_dim).split((heads, kv_heads, kv_heads), dim=1)
    v[0, 0, 0] = 1000.0  # saturates
    angles = torch.rand(9, head_dim // 2) * 6
    rest = (angles.cos(), angles.sin(), torch.tensor([8, 0, 3]), torch.tensor([4, -1, 0]))
    options = {"q_norm": torch.rand(head_dim), "k_norm": torch.rand(head_dim)}
    dtype = torch.float8_e4m3fn if fp8 else torch.float32
    caches = [torch.full((6, kv_heads, head_dim), 7.0).to(dtype) for _ in range(4)]
    expected = rope_write_reference(q, k, v, *rest, *caches[:2], **options)
    answered = rope_write_triton(q, k, v, *rest, *caches[2:], **options)
    torch.testing.assert_close(answered, expected, rtol=1e-5, atol=1e-6)
    for one, other in zip(caches[2:], caches[:2], strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=0.126 if fp8 else 1e-5, atol=0.002)
    assert not fp8 or caches[3].float().max() == 448
