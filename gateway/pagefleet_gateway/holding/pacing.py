"""Work that many events ask for: done soon, and for a tenth of the time at most. `clock`: seconds of any steady clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

REST = 9.0  # times as long as the work took, before it is done again


class Paced:
    """Does the work once for all events that come before it."""

    def __init__(self, work: Callable[[], object], clock: Callable[[], float]) -> None:
        self._work, self._clock = work, clock
        self._rested = 0.0  # when the work may be done again
        self._due = False

    def soon(self) -> None:
        """Do the work in the event loop's next round, or when it has rested."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(max(0.0, self._rested - self._clock()), self._do)

    def _do(self) -> None:
        self._due, began = False, self._clock()
        self._work()
        ended = self._clock()
        self._rested = ended + REST * (ended - began)
