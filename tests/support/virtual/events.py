"""Actions in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

Action = Callable[[float], None]  # gets its own time


class Events:
    """Actions that wait for their time. Those of one time are played in the order in which they were added."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Action]] = []
        self._number = 0

    def at(self, time: float, act: Action) -> None:
        """Add an action."""
        self._number += 1
        heapq.heappush(self._heap, (time, self._number, act))

    def due(self, until: float) -> Iterator[tuple[float, Action]]:
        """Take out the actions up to a time, in order; an action may add others meanwhile."""
        while self._heap and self._heap[0][0] <= until:
            time, _, act = heapq.heappop(self._heap)
            yield time, act
