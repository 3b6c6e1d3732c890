"""Quantising, moving pages and building inputs on the device: the kernels equal their references, to the bit where
nothing is rounded, and touch nothing else.
"""

from __future__ import annotations

import pytest
import torch

from pagefleet_kernels.attention.page_copy import page_copy_reference, page_copy_triton
from pagefleet_kernels.build_inputs import Inputs, build_inputs_reference, build_inputs_triton
from pagefleet_kernels.quantised.fp8_quantise import fp8_quantise_reference, fp8_quantise_triton


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("per_row", [True, False])
def test_fp8_quantise(dtype: torch.dtype, per_row: bool) -> None:
    torch.manual_seed(1)
    x = (torch.randn(5, 2 * 100) * 30)[:, ::2].to(dtype)
    x[3] = 0
    scale = None if per_row else torch.tensor([0.1])
    expected, expected_scales = fp8_quantise_reference(x, scale)
    answered, scales = fp8_quantise_triton(x, scale)
    torch.testing.assert_close(scales, expected_scales, rtol=1e-6, atol=0)
    assert torch.equal(answered.float(), expected.float())
    assert answered.float().abs().max() == 448  # the largest of a row; saturation of a tensor
    if per_row:
        torch.testing.assert_close(answered.float() * scales[:, None], x.float(), rtol=0.126, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(16, 2, 8), (300, 3, 4)])
def test_page_copy_moves_pages_and_nothing_else(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(2)
    pools = torch.randn(12, 2, *shape).to(dtype)  # keys and values of one allocation: a page's stride is not its size
    source, target = pools[:, 0], torch.randn(9, *shape).to(dtype)
    expected = target.clone()
    reads, writes = torch.tensor([11, -1, 3, 3, 0]), torch.tensor([0, 5, 7, 2, -1], dtype=torch.int32)
    page_copy_reference(source.view(torch.uint8), reads, expected.view(torch.uint8), writes)
    page_copy_triton(source, reads, target, writes)
    assert torch.equal(target.view(torch.uint8), expected.view(torch.uint8))
    inside = source.clone().view(torch.uint8)
    page_copy_triton(source, torch.tensor([1]), source, torch.tensor([2]))
    inside[2] = inside[1]
    assert torch.equal(source.view(torch.uint8), inside)


def test_a_page_must_be_whole_words_and_contiguous() -> None:
    pages = torch.tensor([0])
    with pytest.raises(ValueError, match="multiple of 4 bytes"):
        page_copy_triton(torch.zeros(2, 3, dtype=torch.uint8), pages, torch.zeros(2, 3, dtype=torch.uint8), pages)
    with pytest.raises(ValueError, match="contiguous"):
        page_copy_triton(torch.zeros(2, 4, 6)[..., ::2], pages, torch.zeros(2, 4, 3), pages)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("lengths", [(1, 1, 1), (1, 40, 0, 200, 3), (1,) * 130, (5,)])
def test_inputs_are_built_from_the_state(lengths: tuple[int, ...], page_size: int) -> None:
    torch.manual_seed(4)
    count, state = len(lengths), len(lengths) + 4
    rows = torch.randperm(state)[:count].to(torch.int32)
    if count > 2:
        rows[1] = -1  # pads the batch
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    tokens = torch.randint(-1, 50, (sum(lengths) + 3,), dtype=torch.int32)  # three that pad
    computed = torch.randint(0, 90, (state,), dtype=torch.int32)
    last = torch.randint(50, 99, (state,), dtype=torch.int32)
    tables = torch.randint(0, 40_000, (300, state), dtype=torch.int32).t()
    arguments = (tokens, starts, rows, computed, last, tables, page_size)
    expected, answered = build_inputs_reference(*arguments), build_inputs_triton(*arguments)
    for name in Inputs.__dataclass_fields__:
        assert torch.equal(getattr(answered, name), getattr(expected, name)), name
    assert (answered.slots[-3:] == -1).all() and answered.kv_lens[0] == computed[rows[0]] + lengths[0]
