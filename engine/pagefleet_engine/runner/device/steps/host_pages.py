"""KV pages on the host: pinned memory that cached pages move to when the device needs their place, and back from."""

from __future__ import annotations

import torch

from pagefleet_engine.runner.device.model.head import StatePool
from pagefleet_engine.runner.device.model.model import Pool
from pagefleet_engine.runner.device.steps.step import Numbers
from pagefleet_kernels.kernels import Kernels

OUT, IN = 0, 1
Paged = Pool | StatePool  # what has a part of each page


class HostPages:
    """`places` pages of a pool, each in one piece: all layers' [2 layers, page_size, kv_heads, head_dim], or their states."""

    def __init__(self, pool: Paged, places: int, kernels: Kernels) -> None:
        self._pool = pool
        layers, _, *page = pool.memory.shape
        pinned = pool.memory.is_cuda
        self._memory = torch.empty(places, layers, *page, dtype=pool.memory.dtype, pin_memory=pinned)
        self._staging = torch.empty(layers, *page, dtype=pool.memory.dtype, device=pool.memory.device)
        self._lines = torch.arange(layers, device=pool.memory.device)
        self._kernels = kernels

    def move(self, moves: Numbers) -> None:
        """Copy each (OUT or IN, page, place) in order, on the step's own stream: a page is read after its copy."""
        pool = self._pool
        flat = pool.memory.flatten(0, 1)  # page p of line l is row l * pages + p
        for direction, page, place in moves.tolist():
            rows, host = self._lines * pool.pages + page, self._memory[place]
            if direction == OUT:
                self._kernels.page_copy(flat, rows, self._staging, self._lines)
                host.copy_(self._staging, non_blocking=True)
            else:
                self._staging.copy_(host, non_blocking=True)
                self._kernels.page_copy(self._staging, self._lines, flat, rows)
