"""Decides whether the steps of a device go one ahead of their results, or in turn, with draft tokens. Pure.

Draft tokens follow from the tokens of the step before. So a step that may have some begins when that one has ended, and
the device rests while the host works. Which of the two ways brings more tokens a second is measured.
"""

from __future__ import annotations


class TurnPlanner:
    """Averages the tokens a second of both ways, by powers of two of the number of answers, and takes the faster one.

    Steps go ahead until the other way is known to be faster. The slower way is tried first of all, and again now and then.
    """

    TRIAL, AGAIN = 8, 128  # steps of a trial, and between two
    MEMORY = 0.9
    WORTH = 1.02  # times as many tokens a second as ahead

    def __init__(self) -> None:
        self._means: dict[tuple[int, bool], tuple[float, float]] = {}  # tokens and seconds of a step
        self._since: dict[int, int] = {}  # steps since the last trial
        self._left, self._way = 0, False  # of the trial under way
        self.trying = False  # whether the last answer began a trial of steps in turn

    def in_turn(self, answers: int) -> bool:
        """Return whether the next step, of `answers` past their prompts, goes in turn."""
        self.trying = False
        if self._left:
            self._left -= 1
            return self._way
        bits = answers.bit_length()
        turn, ahead = self._rate(bits, True), self._rate(bits, False)
        faster = ahead is not None and turn is not None and turn > self.WORTH * ahead
        since = self._since.get(bits, self.AGAIN) + 1
        if since <= self.AGAIN:
            self._since[bits] = since
            return faster
        self._since[bits] = 0
        self._left, self._way = self.TRIAL - 1, not faster
        self.trying = self._way
        return self._way

    def observe(self, answers: int, in_turn: bool, tokens: int, seconds: float) -> None:
        """Learn that a step of `answers`, after another that went the same way, brought `tokens` within `seconds`."""
        way, rest = (answers.bit_length(), in_turn), 1 - self.MEMORY
        mean, before = self._means.get(way, (tokens, seconds))
        self._means[way] = self.MEMORY * mean + rest * tokens, self.MEMORY * before + rest * seconds

    def _rate(self, bits: int, in_turn: bool) -> float | None:
        tokens, seconds = self._means.get((bits, in_turn), (0.0, 0.0))
        return tokens / seconds if seconds > 0 else None
