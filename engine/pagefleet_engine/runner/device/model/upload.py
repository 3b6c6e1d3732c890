"""Brings tensors from memory-mapped files to a device through two pinned buffers: never a whole copy on the host."""

from __future__ import annotations

import torch

BUFFER_BYTES = 64 << 20


class Upload:
    """Reading the file into one buffer overlaps with the transfer out of the other. On the CPU it is a plain copy."""

    def __init__(self, device: torch.device, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._device, self._turn = device, 0
        pinned = device.type == "cuda"
        self._buffers = [torch.empty(buffer_bytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
        self._events: list[torch.cuda.Event | None] = [None, None]

    def __call__(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Fill `target` with `source` of the same shape, converted to its dtype; returns it."""
        if source.dim() == 0 or source.numel() == 0:
            return target.copy_(source)
        row_bytes = (source.numel() // source.shape[0]) * target.element_size()
        rows = self._buffers[0].numel() // row_bytes
        if rows == 0:
            return target.copy_(source)
        for begin in range(0, source.shape[0], rows):
            part = source[begin : begin + rows]
            buffer = self._next()[: part.shape[0] * row_bytes].view(target.dtype).view(part.shape)
            buffer.copy_(part)
            target[begin : begin + rows].copy_(buffer, non_blocking=True)
            self._sent()
        return target

    def _next(self) -> torch.Tensor:
        event = self._events[self._turn]
        if event is not None:
            event.synchronize()
        return self._buffers[self._turn]

    def _sent(self) -> None:
        if self._device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._events[self._turn] = event
        self._turn = 1 - self._turn
