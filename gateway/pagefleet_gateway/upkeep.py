"""What the gateway does every few seconds beside answering requests: it forgets what is gone, and has Python collect garbage.

A full collection reads every object that there is, and no request is answered meanwhile: 170 ms with 5,000 services that have had
requests. Only it finds garbage that refers to itself and was in use for long, and the gateway makes hardly any. So Python collects young
objects as usual. What survives is frozen, and no collection reads it again. A full collection comes when the process has grown by
GROWTH_BYTES since the last one, in case that frozen objects have become garbage.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections.abc import Callable
from itertools import chain

from pagefleet_gateway.cluster.state import State
from pagefleet_gateway.measuring.counting import Counting
from pagefleet_gateway.picking.picker import Picker

PERIOD_SECONDS = 5.0
GROWTH_BYTES = 256 * 1024 * 1024  # of the process, from one full collection to the next
MIDDLE = 5  # collections of the youngest from one of the middle generation to the next: half of Python's, for half of its time
NEVER = 1 << 30  # and of these to a full collection
USUAL = gc.get_threshold()


def peak_bytes() -> int:
    """Return the most memory that the process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Garbage:
    """Python's garbage collector, which the whole process shares. `size` returns the bytes of the process, which never become fewer."""

    def __init__(self, size: Callable[[], int] = peak_bytes) -> None:
        self._size = size
        self._settled = size()  # as of the last full collection

    def begin(self) -> None:
        gc.set_threshold(USUAL[0], MIDDLE, NEVER)

    def end(self) -> None:
        """Collect as Python does by itself."""
        gc.set_threshold(*USUAL)
        gc.unfreeze()

    def settle(self) -> None:
        """Collect all garbage, and freeze what is left."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._settled = self._size()

    def tend(self) -> None:
        """Collect young garbage and freeze what is left; everything where the process has grown much."""
        if self._size() > self._settled + GROWTH_BYTES:
            self.settle()
        else:
            gc.collect(1)
            gc.freeze()


class Upkeep:
    """`follow` runs until cancelled."""

    def __init__(self, state: State, counting: Counting, picker: Picker) -> None:
        self._state, self._counting, self._picker = state, counting, picker
        self.garbage = Garbage()

    async def follow(self) -> None:
        self.garbage.begin()
        try:
            while True:
                await asyncio.sleep(PERIOD_SECONDS)
                for _ in chain(self._counting.sweep(self._state), self._picker.sweep(time.monotonic())):
                    await asyncio.sleep(0)  # picks get their turn
                self.garbage.tend()
        finally:
            self.garbage.end()
