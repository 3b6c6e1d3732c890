"""The part of one step that computes one sequence, what sampling brought for it, and the outputs of that. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagefleet_engine.core.requests import Finish, TokenOutput
from pagefleet_engine.core.sequence import TokenSequence

# The tokens of one work, for each answer: several answers at a prompt's end, several tokens where draft tokens were accepted.
Results = Sequence[tuple[tuple[int, ...], ...]]


@dataclass(frozen=True)
class Work:
    """Compute `count` tokens of `sequence` from position `start`, the last `drafts` of them draft tokens."""

    sequence: TokenSequence
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
        """The number of first tokens that are drawn from the same logits."""
        return self.sequence.request.n if self.sequence.generated == 0 else 1

    @property
    def tokens(self) -> list[int]:
        """The tokens to compute: known ones, then draft tokens."""
        sequence = self.sequence
        known = sequence.tokens[self.start : self.start + self.count]
        begin = max(0, self.start - len(sequence.tokens))
        return [*known, *sequence.draft[begin : begin + self.count - len(known)]]


def ended(sequence: TokenSequence, finish: Finish) -> list[TokenOutput]:
    """The last outputs of a sequence that ends without a token, and of the answers that would have come from it."""
    unborn = range(1, 1 if sequence.request.embed or sequence.generated else sequence.request.n)
    return [output_of(sequence, (), finish, index=index) for index in (sequence.index, *unborn)]


def output_of(
    sequence: TokenSequence,
    tokens: tuple[int, ...],
    finish: Finish | None,
    first: bool = False,
    index: int | None = None,
) -> TokenOutput:
    queued = None
    if first and sequence.first_scheduled is not None:
        queued = sequence.first_scheduled - sequence.request.arrival
    return TokenOutput(
        sequence.request_id,
        tokens,
        finish.value if finish else None,
        sequence.prompt_tokens,
        sequence.cached_tokens,
        queued,
        sequence.index if index is None else index,
    )
