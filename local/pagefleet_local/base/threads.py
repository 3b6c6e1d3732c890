"""Blocking work in a thread that an interrupt waits for: what follows it, such as taking everything down, never runs beside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

from pagefleet_local.base.console import CONSOLE

Result = TypeVar("Result")


async def in_thread(work: Callable[[], Result]) -> Result:
    """Run `work` and return its result. When cancelled, wait until the work has ended, and then be cancelled: a thread cannot be stopped."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if not running.done():
            CONSOLE.print("interrupted: waiting for the present piece of work to end")
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):  # a second interrupt changes nothing
                await asyncio.wait({running})
        running.exception()  # its failure is no news after an interrupt
        raise
