"""Draft tokens, and how many of them pay. Pure: draft tokens change the speed of an answer and never its text.

The engine draws each token from the model as it would without drafts, keyed on (seed, index, position). A draft token is
accepted when it equals the drawn token. Both kinds of drafts are certain given the text: prompt lookup (Saxena, 2023), and
a draft model (Leviathan et al., ICML 2023) that draws with the same noise. For these the comparison is rejection
sampling: a draft token is accepted with the probability that the model gives it, else another token is drawn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from itertools import accumulate

MAX_MATCH, MIN_MATCH = 3, 2  # tokens at the text's end that must have come before


class NgramIndex:
    """Maps each short run of tokens of one sequence to the place after its last occurrence; grows with the sequence."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}
        self._indexed = 0
        self.matched = 0  # tokens of the text's end that matched for the last draft; 0: there was no draft

    def draft(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        """Return up to `limit` tokens that followed the last occurrence of the text's end; empty when the end is new."""
        # The runs that end at the last token are looked up before they are entered: they would find themselves.
        for end in range(max(self._indexed, MIN_MATCH), len(tokens)):
            for size in range(MIN_MATCH, MAX_MATCH + 1):
                if end >= size:
                    self._next[tuple(tokens[end - size : end])] = end
        self._indexed = max(self._indexed, len(tokens))
        for size in range(MAX_MATCH, MIN_MATCH - 1, -1):
            if len(tokens) >= size and (at := self._next.get(tuple(tokens[-size:]))) is not None:
                self.matched = size
                return tuple(tokens[at : at + limit])
        self.matched = 0
        return ()


class AcceptanceRates:
    """Estimates the probability that a draft token is accepted when the one before it was.

    There is one moving average for each answer and kind of draft, and one for each kind over all answers. An answer
    without drafts of a kind yet has the average over all answers. While nothing is drafted for an answer, its own average
    moves towards the one over all.
    """

    PRIOR = 0.7  # before the first draft of a kind
    OWN_MEMORY, MEMORY, FADE = 0.75, 0.98, 0.02  # of each draft token, and of each step without a draft

    def __init__(self) -> None:
        self._all: dict[int, float] = {}
        self._own: dict[Hashable, dict[int, float]] = {}

    def rate(self, answer: Hashable, kind: int) -> float:
        return self._own.get(answer, {}).get(kind, self._all.get(kind, self.PRIOR))

    def observe(self, answer: Hashable, kind: int, drafted: int, accepted: int) -> None:
        """Learn that the first `accepted` of `drafted` tokens were accepted. Those behind the first rejected one say nothing."""
        tried = min(drafted, accepted + 1)
        share, before = accepted / tried, self._all.get(kind, self.PRIOR)
        own = self.rate(answer, kind)
        self._all[kind] = share + (before - share) * self.MEMORY**tried
        self._own.setdefault(answer, {})[kind] = share + (own - share) * self.OWN_MEMORY**tried

    def fade(self, answer: Hashable, kind: int) -> None:
        """Note a step in which a draft was possible for an answer and was not made."""
        own = self._own.get(answer, {})
        if kind in own:
            own[kind] += self.FADE * (self._all[kind] - own[kind])

    def forget(self, answer: Hashable) -> None:
        self._own.pop(answer, None)


class CostAverage:
    """A moving average of tokens and of seconds of a step. It forgets with every step, so that an old value counts little."""

    MEMORY, NEWEST = 0.9, 0.5  # of each step; the most that the newest value counts

    def __init__(self) -> None:
        self.tokens = self.seconds = 0.0
        self._moved = -1  # the number of the last step of this kind

    def move(self, step: int, tokens: float, seconds: float) -> None:
        """Learn from the step of that number."""
        share = 1.0 if self._moved < 0 else min(self.NEWEST, 1 - self.MEMORY ** (step - self._moved))
        self.tokens += share * (tokens - self.tokens)
        self.seconds += share * (seconds - self.seconds)
        self._moved = step


class DraftPlanner:
    """Learns the cost of steps, and decides how many draft tokens pay.

    It keeps averages by powers of two of the number of answers: the seconds of steps without draft tokens, and what steps with
    draft tokens took beyond those, by how often the draft tokens doubled the step's tokens. Between two averages the cost is a
    straight line. Steps of as many tokens are not averaged together where some have draft tokens and others have not: the draft
    tokens would then seem to cost nothing.

    The planner tries a size that it has not measured. When no draft pays, it tries again now and then. While drafts pay, a step
    without them now and then tells what those cost by now.
    """

    TRY_AGAIN = 64  # steps
    WORTH = 1.02  # times as many tokens a second as without drafts

    def __init__(self, limit: int) -> None:
        self.limit = limit  # draft tokens for an answer in one step
        self._plain: dict[int, CostAverage] = {}  # of steps without draft tokens, by bits of the number of answers
        # Of the draft tokens, and of the seconds beyond a step without: by the same bits, then by `_doublings`.
        self._beyond: dict[int, dict[int, CostAverage]] = {}
        self._steps = self._steps_with = self._steps_without = 0

    def try_again(self) -> None:
        """Let the next plan try draft tokens where none pay."""
        self._steps_without = self.TRY_AGAIN - 1

    def observe(self, answers: int, tokens: int, seconds: float) -> None:
        """Learn that a step of `tokens` in all, one for each of `answers` and the draft tokens, took `seconds`."""
        size = answers.bit_length()
        self._steps += 1
        if tokens == answers:
            self._plain.setdefault(size, CostAverage()).move(self._steps, answers, seconds)
        elif size in self._plain:
            average = self._beyond.setdefault(size, {}).setdefault(_doublings(answers, tokens), CostAverage())
            average.move(self._steps, tokens - answers, seconds - self._seconds_without(answers))

    def plan(self, answers: int, offers: Sequence[tuple[float, int]]) -> list[int]:
        """Return how many tokens to draft for each of `offers`: the counts with the most tokens a second.

        An offer is an answer for which a draft is possible: its acceptance rate, and how many tokens could be drafted.
        """
        counts = [0] * len(offers)
        if answers.bit_length() not in self._plain:
            return counts  # the cost of a step without drafts comes first
        # The likeliest draft tokens first. Of one answer, an earlier one is at least as likely as a later one.
        order = sorted(
            (-(rate**place), place, index)
            for index, (rate, many) in enumerate(offers)
            for place in range(1, min(many, self.limit) + 1)
        )
        best = self._best(answers, [-chance for chance, _, _ in order])
        if best and self._steps_with < self.TRY_AGAIN:
            self._steps_with, self._steps_without = self._steps_with + 1, 0
        elif best:
            best, self._steps_with = 0, 0
        else:
            self._steps_with, self._steps_without = 0, self._steps_without + 1
            again = self._steps_without % self.TRY_AGAIN == 0
            best = sum(place == 1 for _, place, _ in order) if again else 0
        for _, _, index in order[:best]:
            counts[index] += 1
        return counts

    def _best(self, answers: int, chances: Sequence[float]) -> int:
        """Return how many of the draft tokens, the likeliest first, give the most tokens a second."""
        without = self._seconds_without(answers)
        beyond = self._beyond.get(answers.bit_length(), {})
        points = [(0.0, without), *sorted((one.tokens, without + one.seconds) for one in beyond.values())]
        best, highest = 0, self.WORTH * answers / without
        for taken, gained in enumerate(accumulate(chances), 1):
            if _doublings(answers, answers + taken) not in beyond:
                return taken  # not measured yet: try
            rate = (answers + gained) / _cost(points, taken)
            if rate > highest:
                best, highest = taken, rate
        return best

    def _seconds_without(self, answers: int) -> float:
        """Seconds of a step without draft tokens: the average of about as many answers, with the slope towards the next average."""
        own = self._plain[answers.bit_length()]
        next_one = self._plain.get(answers.bit_length() + (1 if answers > own.tokens else -1), own)
        more = next_one.tokens - own.tokens
        slope = max(0.0, (next_one.seconds - own.seconds) / more) if more else 0.0
        return max(own.seconds / 2, own.seconds + slope * (answers - own.tokens))


def _doublings(answers: int, tokens: int) -> int:
    """Return how many powers of two lie between the number of answers and that of a step's tokens."""
    return tokens.bit_length() - answers.bit_length()


def _cost(points: Sequence[tuple[float, float]], tokens: int) -> float:
    """Seconds of a step with `tokens` draft tokens, on the straight line through the two points around or next to that number."""
    if len(points) == 1:
        return points[0][1]
    place = min(max(1, bisect_left(points, (tokens, 0.0))), len(points) - 1)
    (few, low), (many, high) = points[place - 1], points[place]
    slope = max(0.0, (high - low) / (many - few)) if many > few else 0.0
    return max(points[0][1], low + slope * (tokens - few))
