"""One step as numbers: the scheduling rank sends it to every rank, which computes it. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.int32]]
Wide = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Reals = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def none(*shape: int) -> Numbers:
    return np.empty(shape or (0,), dtype=np.int32)


@dataclass(frozen=True)
class Drawing:
    """The sampling of tokens on some seats: heat [3, seats] is temperature, top_p, min_p; seeds [seats]."""

    seats: Numbers
    top_k: Numbers
    heat: Reals
    seeds: Wide

    @classmethod
    def none(cls) -> Drawing:
        return cls(none(), none(), np.empty((3, 0), np.float32), np.empty(0, np.int64))


@dataclass(frozen=True)
class DeviceStep:
    """One forward pass of a rank. Each sequence sits on a seat: a row of the state that lies on the device.

    tokens [n]: one sequence after the other; a negative number stands for the last token sampled on its seat.
    counts, starts and seats [sequences]: new tokens, tokens computed before, the seat.
    owners [sampled]: the sequences whose last token's logits are sampled, and with it those of the tokens before its draft
    tokens.
    drafts [sequences]: how many of the new tokens, the last ones, are draft tokens; empty where none are.
    pages [changes, 3]: (seat, place in the seat's table, page).
    drawing: how tokens are drawn on newly taken seats.
    copies [n, 2]: (from, to) pages of forks.
    moves [n, 3]: (0 out or 1 in, page, place on the host), in this order.
    prompt_rows [n, 2]: (first, how many) tokens whose logits give a prompt's log probabilities.
    chosen_by_host: the scheduling rank takes the logits and chooses; nothing is sampled on the device.
    adapters [sequences]: the numbers of their LoRA adapters, -1 for none; empty where none has one.
    by_draft_model: the draft model, or the EAGLE-3 head, computes the step, in pages of its own.
    """

    tokens: Numbers
    counts: Numbers
    starts: Numbers
    seats: Numbers
    owners: Numbers
    pages: Numbers = field(default_factory=lambda: none(0, 3))
    drawing: Drawing = field(default_factory=Drawing.none)
    copies: Numbers = field(default_factory=lambda: none(0, 2))
    moves: Numbers = field(default_factory=lambda: none(0, 3))
    prompt_rows: Numbers = field(default_factory=lambda: none(0, 2))
    chosen_by_host: bool = False
    drafts: Numbers = field(default_factory=none)
    by_draft_model: bool = False
    adapters: Numbers = field(default_factory=none)

    @property
    def drafted(self) -> bool:
        return bool(self.drafts.any())

    @property
    def drawn(self) -> bool:
        """Whether each token is the last one that was sampled on its seat."""
        return bool((self.tokens < 0).all())

    @property
    def single(self) -> bool:
        """Whether each sequence brings one token and has its next one sampled, as in a decode graph."""
        return (
            not self.chosen_by_host
            and len(self.tokens) == len(self.seats) == len(self.owners)
            and bool((self.counts == 1).all())
        )

    @property
    def verifies(self) -> bool:
        """Whether each sequence brings one token with draft tokens, and all are sampled, as in a graph that verifies."""
        return (
            not self.chosen_by_host
            and self.drafted
            and len(self.seats) == len(self.owners)
            and bool((self.counts == self.drafts + 1).all())
        )

    @property
    def sampled(self) -> tuple[Numbers, Numbers]:
        """[drawn]: the tokens whose logits are sampled, and their sequences."""
        last = self.query_starts[1:][self.owners] - 1
        if not self.drafted:
            return last, self.owners
        drafts = self.drafts[self.owners]
        within = [np.arange(end - count, end + 1, dtype=np.int32) for end, count in zip(last, drafts, strict=True)]
        return np.concatenate([none(), *within]), np.repeat(self.owners, drafts + 1)

    @property
    def query_starts(self) -> Numbers:
        """[sequences + 1]: where each sequence's tokens begin, and the end."""
        first = np.zeros(len(self.counts) + 1, dtype=np.int32)
        np.cumsum(self.counts, out=first[1:])
        return first
