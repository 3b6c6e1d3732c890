"""Work that would keep the event loop from everybody else goes to a thread; small work is quicker without."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

LARGE = 1 << 14  # tokens or characters: some 10 ms
T = TypeVar("T")


async def aside(size: int, work: Callable[[], T]) -> T:
    """What `work` gives, and raises. `size` in tokens or characters that it goes through."""
    return work() if size < LARGE else await asyncio.to_thread(work)
