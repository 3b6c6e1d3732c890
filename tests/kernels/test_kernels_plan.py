"""How launches are cut up: one wave, no part too small to pay, and an entry for every shape."""

from __future__ import annotations

import pytest
import torch

from pagefleet_kernels.launch.plan import WIDEST_TILE, attention_plan, gemm_plan, processors, split_count
from pagefleet_kernels.quantised.gemm import gemm_grid


@pytest.mark.parametrize("slots", [8, 108, 264])
@pytest.mark.parametrize("longest", [1, 7, 128, 2000])
def test_splits_fill_one_wave_and_no_more(slots: int, longest: int) -> None:
    for programs in range(1, 600):
        splits = split_count(programs, slots, longest, 2)
        assert 1 <= splits <= 64
        assert splits == 1 or (programs * splits <= slots and splits * 2 <= longest)
        enough = min(64, longest // 2)
        assert splits >= enough or (splits + 1) * programs > slots  # one more would not fit


def test_known_split_counts() -> None:
    """132 multiprocessors with two programs each; 8 KV heads; 8,192 tokens in tiles of 64."""
    known = {1: 33, 2: 16, 8: 4, 16: 2, 32: 1, 64: 1, 256: 1}
    assert {batch: split_count(8 * batch, 264, 128, 2) for batch in known} == known
    assert split_count(0, 264, 0, 2) == 1


@pytest.mark.parametrize("dim", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 4, 8, 16, 48, 128, 200])
def test_a_plan_holds_a_group_and_suits_its_phase(dim: int, group: int) -> None:
    for longest in (1, 2, 16, 128, 8192):
        for itemsize in (2, 4):
            plan = attention_plan(longest, group, dim, itemsize)
            assert plan.rows >= group and plan.rows & (plan.rows - 1) == 0
    assert attention_plan(1, min(group, 16), dim).rows == 16
    assert attention_plan(8192, group, dim).rows >= 128


def test_a_decode_step_over_fp8_pages_takes_as_many_bytes_at_a_time() -> None:
    for dim in (128, 256):
        assert attention_plan(1, 4, dim, kv_itemsize=1).tile == 2 * attention_plan(1, 4, dim).tile
    assert attention_plan(1, 4, 64, kv_itemsize=1).tile == WIDEST_TILE
    assert attention_plan(8192, 4, 128, kv_itemsize=1) == attention_plan(8192, 4, 128)


def test_a_head_too_large_is_named() -> None:
    with pytest.raises(ValueError, match="head size: 512"):
        attention_plan(1, 4, 512)


@pytest.mark.parametrize("fp8", [False, True])
def test_gemm_plans_take_the_fewest_rows_that_hold_them(fp8: bool) -> None:
    assert [gemm_plan(rows, fp8).rows for rows in (1, 16, 17, 33, 64)] == [16, 16, 32, 64, 64]
    assert gemm_plan(5000, fp8).rows == (128 if fp8 else 64)


@pytest.mark.parametrize("inner", [128, 4096, 14336])
@pytest.mark.parametrize("columns", [64, 4096])
def test_a_grid_covers_the_depth_once(inner: int, columns: int) -> None:
    device = torch.device("cpu")
    plan = gemm_plan(1, False)
    grid = gemm_grid(plan, 1, columns, inner, 128, device, torch.bfloat16)
    splits = grid.grid[2]
    assert (splits - 1) * grid.part < inner <= splits * grid.part and grid.part % 128 == 0
    blocks = -(-columns // plan.columns)
    assert grid.grid[:2] == (1, blocks) and blocks * splits <= max(blocks, plan.resident * processors(device))
