"""Copies of whole pages: inside a pool (a fork's partly filled page), and between pools.

Floor: a page is read once and written once, 2 * pages * page bytes; no flops. For the host, pages are copied into one
buffer so that the bus sees one long transfer. That adds 2 * pages * page bytes of device memory and is hidden behind the
transfer (the bus is some fifty times slower).

Tolerance: none, bytes are moved as they are.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import torch

from pagefleet_kernels.launch.language import jit, runs_on, tl

WORDS = 2048  # of one program


def page_copy(
    source: torch.Tensor, source_pages: torch.Tensor, target: torch.Tensor, target_pages: torch.Tensor
) -> None:
    """target[target_pages[i]] = source[source_pages[i]] for each i where neither is negative: those pad the lists.

    source and target [pages, ...] of one dtype and page shape, each page contiguous; they may be the same pool, but a
    page must not be both read and written. source_pages and target_pages [n] integers on the same device.
    """
    (page_copy_triton if runs_on(source) else page_copy_reference)(source, source_pages, target, target_pages)


def page_copy_reference(
    source: torch.Tensor, source_pages: torch.Tensor, target: torch.Tensor, target_pages: torch.Tensor
) -> None:
    real = (source_pages >= 0) & (target_pages >= 0)
    target[target_pages[real].long()] = source[source_pages[real].long()]


def page_copy_triton(
    source: torch.Tensor, source_pages: torch.Tensor, target: torch.Tensor, target_pages: torch.Tensor
) -> None:
    one, other = _words(source), _words(target)
    count, words = source_pages.shape[0], one.shape[1]
    if count:
        _kernel[(count, -(-words // WORDS))](
            one, source_pages, other, target_pages, one.stride(0), other.stride(0), words, BLOCK=WORDS, num_warps=8
        )


def _words(pool: torch.Tensor) -> torch.Tensor:
    """[pages, words] of int32: the same memory, whatever the pages hold."""
    if not pool[0].is_contiguous():
        raise ValueError(f"pool: each page must be contiguous, strides are {pool.stride()}")
    size = pool[0].numel()
    flat = pool.as_strided((pool.shape[0], size), (pool.stride(0), 1))
    if (size * pool.element_size()) % 4 or (pool.stride(0) * pool.element_size()) % 4:
        raise ValueError(f"pool: a page must be a multiple of 4 bytes, it is {size * pool.element_size()}")
    return flat.view(torch.int32)


@jit
def _kernel(source, source_pages, target, target_pages, source_row, target_row, words, BLOCK: tl.constexpr):
    """One program per page and BLOCK words of it."""
    entry = tl.program_id(0)
    one, other = tl.load(source_pages + entry).to(tl.int64), tl.load(target_pages + entry).to(tl.int64)
    if one >= 0 and other >= 0:
        word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = word < words
        moved = tl.load(source + one * source_row + word, mask=inside)
        tl.store(target + other * target_row + word, moved, mask=inside)
