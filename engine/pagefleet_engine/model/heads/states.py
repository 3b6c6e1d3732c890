"""The states of the served model that a head reads, kept beside the KV pages: a page that is found again has them too."""

from __future__ import annotations

from typing import Protocol

import torch


class Reads(Protocol):
    """A head, on the CPU or a device."""

    @property
    def layers(self) -> tuple[int, ...]: ...

    def joined(self, states: list[torch.Tensor]) -> torch.Tensor: ...


class Slots(Protocol):
    """Where states are kept."""

    def write(self, slots: torch.Tensor, states: torch.Tensor) -> None: ...


class StatePages:
    """One state for each slot of the KV pages."""

    def __init__(self, pages: int, page_size: int, hidden: int, dtype: torch.dtype) -> None:
        self._slots = torch.zeros(pages * page_size, hidden, dtype=dtype)
        self._page_size = page_size

    def write(self, slots: torch.Tensor, states: torch.Tensor) -> None:
        """Keep states [n, hidden] at slots [n]."""
        self._slots.index_copy_(0, slots.long(), states.to(self._slots.dtype))

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """Return the states [n, hidden] float32 at slots [n]."""
        return self._slots.index_select(0, slots.long()).float()

    def copy(self, source: int, target: int) -> None:
        """Copy one page onto another."""
        pages = self._slots.view(-1, self._page_size, self._slots.shape[1])
        pages[target] = pages[source]


class Capture:
    """Keeps the states of one forward pass, whose tokens lie at `slots` [n]."""

    def __init__(self, head: Reads, states: Slots, slots: torch.Tensor) -> None:
        self._head, self._states, self._slots = head, states, slots
        self._taken: list[torch.Tensor] = []

    def take(self, layer: int, x: torch.Tensor) -> None:
        """See `Tap`."""
        if layer not in self._head.layers:
            return
        self._taken.append(x.clone())
        if len(self._taken) == len(self._head.layers):
            self._states.write(self._slots, self._head.joined(self._taken))
