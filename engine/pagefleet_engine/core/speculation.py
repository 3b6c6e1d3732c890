"""Guesses of the next tokens, and when guessing pays. Pure: what is guessed never changes an answer, only its speed.

The engine draws each token from the model as it would without guesses, keyed on (seed, index, position); a guess
stands when it is what was drawn. For a guess that is certain given the text (prompt lookup: Saxena, 2023; a draft
model: Leviathan et al., ICML 2023, with the draw's own noise) that is rejection sampling: the guess is taken with the
probability that the model gives it, else a token is drawn from the rest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from itertools import accumulate

LONGEST, SHORTEST = 3, 2  # tokens that must match before a continuation is guessed


class NgramIndex:
    """Where each short run of tokens of one sequence was last seen, kept up as it grows."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}
        self._seen = 0
        self.matched = 0  # tokens of the end that the last guess was found by

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
                self.matched = size
                return tuple(tokens[at : at + most])
        self.matched = 0
        return ()


class Standing:
    """How often a guess stands after the one before it did: of an answer, by kinds of guesses, and of all answers.

    What an answer has no guesses of yet is as likely as it is for all. Averages move: with what stood, and an answer's
    own towards the one of all while nothing is guessed for it.
    """

    HOPE = 0.7  # before anything is known
    OWN_MEMORY, MEMORY, FADES = 0.75, 0.98, 0.02  # for each guess, and each step without one

    def __init__(self) -> None:
        self._all: dict[int, float] = {}
        self._own: dict[Hashable, dict[int, float]] = {}

    def chance(self, answer: Hashable, kind: int) -> float:
        return self._own.get(answer, {}).get(kind, self._all.get(kind, self.HOPE))

    def learn(self, answer: Hashable, kind: int, guessed: int, right: int) -> None:
        """The first `right` of an answer's `guessed` tokens stood; of those after the first wrong one nothing is known."""
        tried = min(guessed, right + 1)
        share, before = right / tried, self._all.get(kind, self.HOPE)
        own = self.chance(answer, kind)
        self._all[kind] = share + (before - share) * self.MEMORY**tried
        self._own.setdefault(answer, {})[kind] = share + (own - share) * self.OWN_MEMORY**tried

    def fade(self, answer: Hashable, kind: int) -> None:
        """Nothing was guessed for an answer that could have been."""
        own = self._own.get(answer, {})
        if kind in own:
            own[kind] += self.FADES * (self._all[kind] - own[kind])

    def forget(self, answer: Hashable) -> None:
        self._own.pop(answer, None)


class Pace:
    """Learns what steps cost, and says how many guesses pay.

    A step's seconds and number of tokens are averaged by powers of two of that number and of the number of answers, whose
    contexts cost time however many tokens each has; between two averages the cost is a straight line. A size never seen
    is tried; when nothing pays it is tried again now and then.
    """

    TRY_AGAIN = 64  # steps
    MEMORY = 0.9
    WORTH = 1.02  # times as many tokens a second as without guesses

    def __init__(self, most: int) -> None:
        self.most = most  # guesses for an answer
        # By bits of the number of answers, then of that of tokens: mean tokens and seconds.
        self._seen: dict[int, dict[int, tuple[float, float]]] = {}
        self._off = 0

    def took(self, answers: int, tokens: int, seconds: float) -> None:
        """A step of a token for each of `answers` and guesses, `tokens` in all, took `seconds`."""
        seen, rest = self._seen.setdefault(answers.bit_length(), {}), 1 - self.MEMORY
        mean, before = seen.get(tokens.bit_length(), (tokens, seconds))
        seen[tokens.bit_length()] = self.MEMORY * mean + rest * tokens, self.MEMORY * before + rest * seconds

    def guesses(self, answers: int, chances: Sequence[tuple[float, int]]) -> list[int]:
        """How many tokens to guess for each of the `answers` that can: those that bring most tokens a second.

        `chances`: how likely a guess is to stand when the one before it did, and how many tokens could be guessed.
        """
        counts = [0] * len(chances)
        seen = self._seen.get(answers.bit_length(), {})
        if answers.bit_length() not in seen:
            return counts  # first see what a step without guesses costs
        points = sorted(seen.values())
        # By how likely each is to be of use; of one answer's, an earlier one is never less so than a later one.
        order = sorted(
            (-(chance**place), place, index)
            for index, (chance, many) in enumerate(chances)
            for place in range(1, min(many, self.most) + 1)
        )
        best, most = 0, self.WORTH * answers / _cost(points, answers)
        for taken, gained in enumerate(accumulate(-chance for chance, _, _ in order), 1):
            if (answers + taken).bit_length() not in seen:
                best = taken  # not measured yet: try
                break
            rate = (answers + gained) / _cost(points, answers + taken)
            if rate > most:
                best, most = taken, rate
        if best:
            self._off = 0
        else:
            self._off += 1
            best = sum(place == 1 for _, place, _ in order) if self._off % self.TRY_AGAIN == 0 else 0
        for _, _, index in order[:best]:
            counts[index] += 1
        return counts


def _cost(points: Sequence[tuple[float, float]], tokens: int) -> float:
    """Seconds of so many tokens, on the straight line through the two points (tokens, seconds) around them, or beside."""
    if len(points) == 1:
        return points[0][1]
    place = min(max(1, bisect_left(points, (tokens, 0.0))), len(points) - 1)
    (few, low), (many, high) = points[place - 1], points[place]
    slope = max(0.0, (high - low) / (many - few))
    return max(points[0][1], low + slope * (tokens - few))
