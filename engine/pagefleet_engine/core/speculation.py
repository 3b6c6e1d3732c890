"""Guesses of the next tokens, and when guessing pays. Pure: what is guessed never changes an answer, only its speed.

The engine draws each token from the model as it would without guesses, keyed on (seed, index, position); a guess
stands when it is what was drawn. For a guess that is certain given the text (prompt lookup: Saxena, 2023; a draft
model: Leviathan et al., ICML 2023, with the draw's own noise) that is rejection sampling: the guess is taken with the
probability that the model gives it, else a token is drawn from the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST, SHORTEST = 3, 2  # tokens that must match before a continuation is guessed


class NgramIndex:
    """Where each short run of tokens of one sequence was last seen, kept up as it grows."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}
        self._seen = 0

    def guess(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        """What followed the last occurrence of the text's end, up to `most` tokens; empty where it is new."""
        # The runs that end at the last token are looked up before they are entered: they would find themselves.
        for end in range(max(self._seen, SHORTEST), len(tokens)):
            for size in range(SHORTEST, LONGEST + 1):
                if end >= size:
                    self._next[tuple(tokens[end - size : end])] = end
        self._seen = max(self._seen, len(tokens))
        for size in range(LONGEST, SHORTEST - 1, -1):
            if len(tokens) >= size and (at := self._next.get(tuple(tokens[-size:]))) is not None:
                return tuple(tokens[at : at + most])
        return ()


class Pace:
    """Learns what steps cost and how often guesses stand, and says how many guesses pay.

    A step's seconds are kept by the number of tokens it computed, in powers of two; acceptance is a moving average.
    Both start out hopeful, so that guessing is tried; when it was switched off it is tried again now and then.
    """

    TRY_AGAIN = 64  # steps
    MEMORY = 0.9

    def __init__(self, most: int) -> None:
        self._most = most
        self._seconds: dict[int, float] = {}
        self._acceptance = 0.7
        self._off = 0

    @property
    def acceptance(self) -> float:
        return self._acceptance

    def took(self, tokens: int, seconds: float) -> None:
        """A step of single tokens and guesses, `tokens` in all, took `seconds`."""
        bucket = max(1, tokens).bit_length()
        before = self._seconds.get(bucket, seconds)
        self._seconds[bucket] = self.MEMORY * before + (1 - self.MEMORY) * seconds

    def outcomes(self, guessed: int, right: int) -> None:
        """Of `guessed` tokens of one step `right` stood: the share that is the average's next value."""
        if guessed:
            weight = 1 - self.MEMORY ** min(1.0, guessed / 8)
            self._acceptance += weight * (right / guessed - self._acceptance)

    def guesses(self, sequences: int) -> int:
        """How many tokens to guess for each of `sequences`: the number that brings most tokens a second; 0 is off."""
        if sequences == 0:
            return 0
        base = self._cost(sequences)
        if base is None:
            return 0  # first see what a step without guesses costs
        best, most = 0, 1.0
        for count in range(1, self._most + 1):
            cost = self._cost(sequences * (1 + count))
            if cost is None:
                best = count  # not measured yet: try
                break
            expected = sum(self._acceptance**power for power in range(count + 1))
            rate = expected * base / cost
            if rate > most * 1.02:
                best, most = count, rate
        if best:
            self._off = 0
            return best
        self._off += 1
        return 1 if self._off % self.TRY_AGAIN == 0 else 0

    def _cost(self, tokens: int) -> float | None:
        return self._seconds.get(max(1, tokens).bit_length())
