"""What one step computes for one sequence, and what sampling brought for it. Pure."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from pagefleet_engine.core.sequence import Sequence

# What a work's sampling brought: for each answer its tokens. Several answers at a prompt's end, several tokens where
# guesses were right.
Results = Items[tuple[tuple[int, ...], ...]]


@dataclass(frozen=True)
class Work:
    """Compute `count` tokens of `sequence` from position `start`, the last `drafts` of them guesses."""

    sequence: Sequence
    start: int
    count: int
    drafts: int = 0

    @property
    def ends(self) -> bool:
        """Whether the sequence's last known token is computed."""
        return self.start + self.count - self.drafts == len(self.sequence.tokens)

    @property
    def samples(self) -> bool:
        return self.ends and not self.sequence.request.embed

    @property
    def answers(self) -> int:
        """How many first tokens are drawn from the same logits."""
        return self.sequence.request.n if self.sequence.generated == 0 else 1

    @property
    def tokens(self) -> list[int]:
        """The tokens to compute: known ones, then guesses."""
        sequence = self.sequence
        known = sequence.tokens[self.start : self.start + self.count]
        begin = max(0, self.start - len(sequence.tokens))
        return [*known, *sequence.draft[begin : begin + self.count - len(known)]]
