"""The CPU engine's KV pages take memory when tokens are written to them, and none before."""

from __future__ import annotations

from pathlib import Path

import torch

from pagefleet_kernels.cpu.layout import KVPages

MIB = 1 << 20
PAGES, KV_HEADS, PAGE_SIZE, HEAD_DIM = 8192, 3, 16, 64
ONE_ARRAY = PAGES * KV_HEADS * PAGE_SIZE * HEAD_DIM * 4  # bytes: 96 MiB
# The kernel may give 2 MiB at a time, and other memory of this process changes a little.
SLACK = 8 * MIB


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_pages_take_memory_when_they_are_written() -> None:
    before = resident()
    layer = KVPages.zeros(PAGES, KV_HEADS, PAGE_SIZE, HEAD_DIM, torch.float32)
    assert resident() - before < SLACK
    layer.keys[: PAGES // 2] = 1.0
    half = resident() - before
    assert ONE_ARRAY // 2 - SLACK < half < ONE_ARRAY // 2 + SLACK
    layer.copy(0, PAGES - 1)
    assert resident() - before < half + SLACK
    del layer
    assert resident() - before < SLACK


def test_pages_are_zeros_and_begin_with_a_line_of_the_cache() -> None:
    layer = KVPages.zeros(3, 2, 32, 16, torch.float16)
    for array, shape in ((layer.keys, (3, 2, 2, 16, 16)), (layer.values, (3, 2, 32, 16))):
        assert array.shape == shape and array.dtype is torch.float16 and array.is_contiguous()
        assert not array.any() and array.data_ptr() % 64 == 0
