"""Runs work that would block the event loop in a thread; small work is faster without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

LARGE = 1 << 14  # tokens or characters: some 10 ms
T = TypeVar("T")


async def run_in_thread(size: int, work: Callable[[], T]) -> T:
    """Return the result of `work`, or raise its error. `size` is the number of tokens or characters that it reads."""
    return work() if size < LARGE else await asyncio.to_thread(work)
