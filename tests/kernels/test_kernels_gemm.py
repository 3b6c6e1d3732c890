"""The products of a mixture of experts, and with AWQ and FP8 weights equal their references, for any number of rows and with the depth split,
and the references the formats' definitions.
"""

from __future__ import annotations

import pytest
import torch

from pagefleet_kernels.grouped_gemm import grouped_gemm, grouped_gemm_triton, groups
from pagefleet_kernels.quantised.awq_gemm import awq_gemm_reference, awq_gemm_triton, awq_unpack
from pagefleet_kernels.quantised.fp8_gemm import fp8_gemm_reference, fp8_gemm_triton

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


def assert_near(answered: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    assert answered.dtype == expected.dtype and answered.isfinite().all()
    most = float(expected.abs().max())
    torch.testing.assert_close(answered.float(), expected.float(), rtol=tolerance, atol=tolerance * most)


@pytest.mark.parametrize(("rows", "top"), [(1, 2), (9, 3), (70, 1)])
@pytest.mark.parametrize("biased", [False, True])
def test_grouped_gemm(rows: int, top: int, biased: bool) -> None:
    torch.manual_seed(2)
    experts, columns, inner = 6, 72, 96
    x, weight = torch.randn(rows, inner), torch.randn(experts, columns, inner)
    bias = torch.randn(experts, columns) if biased else None
    chosen = torch.rand(rows, experts).topk(top).indices
    expected = torch.stack([weight[expert] @ x[pair // top] for pair, expert in enumerate(chosen.flatten().tolist())])
    if bias is not None:
        expected += bias[chosen.flatten()]
    for product in (grouped_gemm, grouped_gemm_triton):
        assert_near(product(x, weight, bias, groups(chosen, experts), top), expected, 1e-5)


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32)


def test_awq_words_hold_even_columns_first() -> None:
    """0x76543210 packs nibble i = i: columns 0 to 7 are at nibbles 0 4 1 5 2 6 3 7."""
    assert awq_unpack(torch.tensor([[0x76543210]], dtype=torch.int32)).tolist() == [[0, 4, 1, 5, 2, 6, 3, 7]]
    assert awq_unpack(torch.tensor([[-1]], dtype=torch.int32)).tolist() == [[15] * 8]


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "group"), [(1, 512, 72, 128), (5, 384, 64, 32), (70, 96, 136, 48), (129, 192, 264, 48)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_awq_gemm(rows: int, inner: int, columns: int, group: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x = torch.randn(rows, 2 * inner)[:, ::2].to(dtype)
    scales = (torch.rand(inner // group, columns) * 0.1).to(torch.float16)
    weights = (words(inner, columns // 8), words(inner // group, columns // 8), scales)
    assert_near(awq_gemm_triton(x, *weights), awq_gemm_reference(x, *weights), TOLERANCE[dtype])


@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 1024, 72), (40, 300, 130), (150, 128, 64)])
@pytest.mark.parametrize("per_tensor", [False, True])
def test_fp8_gemm(rows: int, inner: int, columns: int, per_tensor: bool) -> None:
    torch.manual_seed(3)
    x, weight = (torch.randn(count, inner).mul(9).to(torch.float8_e4m3fn) for count in (rows, columns))
    one, other = (1, 1) if per_tensor else (rows, columns)
    arguments = (x, torch.rand(one), weight.t().contiguous().t(), torch.rand(2 * other)[::2], torch.float32)
    # A GPU's FP8 matrix unit keeps fewer bits of its sums.
    tolerance = 1e-5 if x.device.type == "cpu" else 2e-3
    assert_near(fp8_gemm_triton(*arguments), fp8_gemm_reference(*arguments), tolerance)
    low = (*arguments[:4], torch.bfloat16)
    assert_near(fp8_gemm_triton(*low), fp8_gemm_reference(*low), 8e-3)


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="group must be a multiple of 16"):
        awq_gemm_triton(torch.zeros(1, 24), words(24, 1), words(3, 1), torch.zeros(3, 8))
