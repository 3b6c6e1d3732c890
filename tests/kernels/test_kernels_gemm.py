"""The products with AWQ, FP4 and FP8 weights equal their references, for any number of rows and with the depth split,
and the references the formats' definitions.
"""

from __future__ import annotations

import pytest
import torch

from pagefleet_kernels.quantised.awq_gemm import awq_gemm, awq_gemm_triton, awq_unpack
from pagefleet_kernels.quantised.fp4_gemm import E2M1, fp4_gemm, fp4_gemm_triton, fp4_weights
from pagefleet_kernels.quantised.fp8_gemm import fp8_gemm, fp8_gemm_triton

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


def assert_near(answered: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    assert answered.dtype == expected.dtype and answered.isfinite().all()
    most = float(expected.abs().max())
    torch.testing.assert_close(answered.float(), expected.float(), rtol=tolerance, atol=tolerance * most)


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32)


def test_awq_words_hold_even_columns_first() -> None:
    """0x76543210 packs nibble i = i: columns 0 to 7 are at nibbles 0 4 1 5 2 6 3 7."""
    assert awq_unpack(torch.tensor([[0x76543210]], dtype=torch.int32)).tolist() == [[0, 4, 1, 5, 2, 6, 3, 7]]
    assert awq_unpack(torch.tensor([[-1]], dtype=torch.int32)).tolist() == [[15] * 8]


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "group"), [(1, 512, 72, 128), (5, 384, 64, 32), (70, 96, 136, 48)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_awq_gemm(rows: int, inner: int, columns: int, group: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x = torch.randn(rows, 2 * inner)[:, ::2].to(dtype)
    scales = (torch.rand(inner // group, columns) * 0.1).to(torch.float16)
    weights = (words(inner, columns // 8), words(inner // group, columns // 8), scales)
    assert_near(awq_gemm_triton(x, *weights), awq_gemm(x, *weights), TOLERANCE[dtype])


def test_fp4_numbers_and_scales_are_what_the_formats_say() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    packed = (codes[0::2] | codes[1::2] << 4).repeat(4)[None]  # 64 numbers: 0 to 15, four times
    scales = torch.tensor([[127, 130]], dtype=torch.uint8)
    expected = torch.tensor(E2M1).repeat(4) * torch.tensor([1.0, 8.0]).repeat_interleave(32)
    assert torch.equal(fp4_weights(packed, scales)[0], expected)
    eye = torch.eye(64)
    assert torch.equal(fp4_gemm_triton(eye, packed, scales)[:, 0], expected)


@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 512, 80), (20, 192, 64), (70, 128, 100)])
@pytest.mark.parametrize("nvidia", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp4_gemm(rows: int, inner: int, columns: int, nvidia: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    x = torch.randn(2 * rows, inner)[::2].to(dtype)
    weight = torch.randint(0, 256, (columns, inner // 2), dtype=torch.uint8)
    powers = torch.randint(120, 130, (columns, inner // 32), dtype=torch.uint8)
    scales = (torch.rand(columns, inner // 16) * 9).to(torch.float8_e4m3fn) if nvidia else powers
    assert_near(fp4_gemm_triton(x, weight, scales, 0.3), fp4_gemm(x, weight, scales, 0.3), TOLERANCE[dtype])


@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 1024, 72), (40, 300, 130), (150, 128, 64)])
@pytest.mark.parametrize("per_tensor", [False, True])
def test_fp8_gemm(rows: int, inner: int, columns: int, per_tensor: bool) -> None:
    torch.manual_seed(3)
    x, weight = (torch.randn(count, inner).mul(9).to(torch.float8_e4m3fn) for count in (rows, columns))
    one, other = (1, 1) if per_tensor else (rows, columns)
    arguments = (x, torch.rand(one), weight.t().contiguous().t(), torch.rand(2 * other)[::2], torch.float32)
    assert_near(fp8_gemm_triton(*arguments), fp8_gemm(*arguments), 1e-5)
    assert_near(fp8_gemm_triton(*arguments[:4], torch.bfloat16), fp8_gemm(*arguments[:4], torch.bfloat16), 8e-3)


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="group must be a multiple of 16"):
        awq_gemm_triton(torch.zeros(1, 24), words(24, 1), words(3, 1), torch.zeros(3, 8))
    with pytest.raises(ValueError, match="3 blocks of 32 for 64"):
        fp4_gemm_triton(torch.zeros(1, 64), torch.zeros(8, 32).byte(), torch.zeros(8, 3).byte())
