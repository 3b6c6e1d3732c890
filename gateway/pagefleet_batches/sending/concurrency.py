"""How many lines are sent at the same time: more while the gateway takes them, fewer at once when it refuses one. Pure.

Additive increase, multiplicative decrease, with a slow start (Chiu and Jain 1989; RFC 5681): the limit doubles in each round
until the first refusal, grows by one a round after it, and is halved by a refusal. Times are steady seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST = 1.0


@dataclass
class Concurrency:
    """The limit of one lane, from 1 to `most`."""

    most: int
    limit: float = LEAST
    doubles_below: float = float("inf")  # the slow start's threshold
    paused_until: float = 0.0
    _cut_at: float = float("-inf")

    def room(self, in_flight: int, now: float) -> bool:
        """Whether one more line may be sent."""
        return now >= self.paused_until and in_flight < int(self.limit)

    def succeed(self, in_flight: int) -> None:
        """Count an answer. `in_flight`: with the line that it is of. A limit that was not used says nothing."""
        if in_flight >= int(self.limit):
            self.limit = min(
                float(self.most), self.limit + (1.0 if self.limit < self.doubles_below else 1.0 / self.limit)
            )

    def refuse(self, sent_at: float, retry_after: float, now: float) -> None:
        """Count a refusal of a line that was sent at `sent_at`. Refusals of one round halve the limit once."""
        self.paused_until = max(self.paused_until, now + retry_after)
        if sent_at >= self._cut_at:
            self._cut_at = now
            self.doubles_below = self.limit = max(LEAST, self.limit / 2)
