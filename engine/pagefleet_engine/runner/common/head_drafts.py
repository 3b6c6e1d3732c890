"""Drafts with an EAGLE-3 head (Li et al., NeurIPS 2025): a chain of tokens, from states of the served model.

At a position the head reads the served model's state there and the token behind it. So its KV at the last computed position
waits until the next token is known. While drafting does not pay the head computes nothing. The states of computed positions
lie beside the KV pages, so the head makes up for what it missed, whether a prompt was computed in chunks, by another request
(pages of the prefix cache) or anew after a preemption.

Answers whose texts part behind a full page share that page, and so the head's entry of its last position, which depends on
the next token: one of them may read the other's. This changes only which tokens are proposed.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagefleet_engine.core.sequence import TokenSequence
from pagefleet_engine.core.work import Work
from pagefleet_engine.model.checkpoint.config import ModelConfig
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.model.heads.weights import HeadFiles
from pagefleet_engine.runner.common.speculator import FIELD, DraftModel


def following(work_items: Sequence[Work]) -> list[int]:
    """Return the tokens one place after those of the work items."""
    return [token for work in work_items for token in Work(work.sequence, work.start + 1, work.count).tokens]


class HeadDrafts(DraftModel):
    """The drafter's work items are positions of the head. Their tokens are those one place later.

    Of the first place, a work item has all positions up to the last computed one: those of tokens that were accepted in
    the last step too, whose entries came from the head's own outputs.
    """

    def _chain(self, drafting: Sequence[Work]) -> None:
        firsts = []
        for work in drafting:
            begin = min(self._begin(work.sequence), work.start - 1)
            firsts.append(Work(work.sequence, begin, work.start - begin))
        later = [
            [Work(work.sequence, work.start - 1 + place, 1) for work in drafting if work.drafts > place]
            for place in range(1, max(work.drafts for work in drafting))
        ]
        self._fill([firsts, *later])
        for work in firsts:
            self._set(work, work.start + work.count)

    def _due(self, answer: TokenSequence) -> int:
        return answer.computed - 1 - self.planner.limit


def check_head(files: HeadFiles, model: ModelConfig) -> tuple[int, ...]:
    """Return the served model's layers whose inputs the head reads. Raises ModelError when it is not for this model."""
    head = files.config
    if head.shape.vocab_size != model.vocab_size:
        raise ModelError(
            FIELD, f"vocab_size of the head is {head.shape.vocab_size}, the served model has {model.vocab_size} tokens"
        )
    if head.target_hidden_size != model.hidden_size:
        raise ModelError(
            FIELD,
            f"target_hidden_size of the head is {head.target_hidden_size}, the served model's states have {model.hidden_size}",
        )
    if not files.embeds and head.shape.hidden_size != model.hidden_size:
        raise ModelError(
            FIELD,
            f"the head has no embed_tokens.weight, and its hidden_size {head.shape.hidden_size} is not the served model's",
        )
    return head.tapped(model.layers)
