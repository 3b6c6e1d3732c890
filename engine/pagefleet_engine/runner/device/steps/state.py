"""The state on the device between steps: each seat's last token, page table and sampling. One more row is padding."""

from __future__ import annotations

import numpy as np
import torch

from pagefleet_engine.runner.device.steps.step import DeviceStep, Wide
from pagefleet_kernels.kernels import Kernels


class State:
    """`seats` rows; row `seats` is where padding writes. `places` is the most pages of one sequence."""

    def __init__(self, seats: int, places: int, page_size: int, device: torch.device, kernels: Kernels) -> None:
        self.page_size, self.places, self._device, self._kernels = page_size, places, device, kernels
        rows = seats + 1
        self._spare = seats

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.last_tokens, self.computed, self.tables = zeros(rows), zeros(rows), zeros(rows, places)
        self._top_k, self._seeds = zeros(rows), zeros(rows, dtype=torch.int64)
        self._heat = zeros(3, rows, dtype=torch.float32)

    def write(self, step: DeviceStep) -> None:
        """Take the step's changes of tables and seats."""
        if len(step.pages):
            changes = self.sent(step.pages.T).long()
            self.tables.view(-1).index_copy_(0, changes[0] * self.places + changes[1], changes[2].int())
        drawing = step.drawing
        if len(drawing.seats):
            seats = self.sent(drawing.seats).long()
            self._top_k.index_copy_(0, seats, self.sent(drawing.top_k))
            self._heat.index_copy_(1, seats, self.sent(drawing.heat))
            self._seeds.index_copy_(0, seats, self.sent(drawing.seeds))

    def sent(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> torch.Tensor:
        """Copy the numbers to the device. From pinned memory the copy is only launched; the allocator holds that memory until
        the copy is done.
        """
        held = torch.from_numpy(np.array(array, order="C"))
        if self._device.type == "cuda" and held.numel():
            return held.pin_memory().to(self._device, non_blocking=True)
        return held.to(self._device)

    def seated(self, seats: torch.Tensor) -> torch.Tensor:
        """[n] int64 rows: padding's seats of -1 have the spare one."""
        return torch.where(seats < 0, self._spare, seats).long()

    def draw(self, logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """As `drawn`, with one token for each row, which is stored as its last."""
        tokens = self.drawn(logits, rows, positions)
        self.last_tokens.index_copy_(0, rows, tokens)
        return tokens

    def drawn(
        self, logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, seeds: Wide | None = None
    ) -> torch.Tensor:
        """Tokens [n] int32 from logits [n, vocab], each drawn as its row [n] says. `seeds` [n]: others than the rows'."""
        heat = self._heat.index_select(1, rows)
        keys = self._seeds.index_select(0, rows) if seeds is None else self.sent(seeds)
        return self._kernels.sample(
            logits, heat[0], self._top_k.index_select(0, rows), heat[1], heat[2], keys, positions
        )
