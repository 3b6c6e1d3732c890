"""The limits of one engine: the sizes it was started with, and the reasons to refuse a request for ever. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagefleet_engine.core.requests import Batching, EngineRequest, Policy

MAX_REQUEST_ANSWERS = 64  # sequences that one request may become


@dataclass(frozen=True)
class Limits:
    """The limits of one scheduler. Sizes in tokens, sequences and pages; `eos_token_ids` end a sequence unless it ignores them.

    A prompt of more than `long_prompt_tokens` is computed `max_chunk_tokens` a step, so that the streams beside it keep
    their pace; a shorter one as the step's budget has room. At most `max_pinned_pages` are pinned.

    Raises ValueError for sizes with which no step could ever compute anything.
    """

    page_size: int
    pages: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    batching: Batching
    eos_token_ids: frozenset[int]
    max_chunk_tokens: int = 1 << 30
    prefix_caching: bool = True
    policy: Policy = Policy.PRIORITY
    long_prompt_tokens: int = 0
    max_pinned_pages: int = 0

    def __post_init__(self) -> None:
        for name in ("page_size", "pages", "max_num_seqs", "max_num_batched_tokens", "max_chunk_tokens", "vocab_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_model_len < 2:
            raise ValueError(f"max_model_len must be at least 2 (a prompt and an answer), not {self.max_model_len}")

    @property
    def capacity(self) -> int:
        """Tokens that the KV cache holds."""
        return self.pages * self.page_size

    def has_token(self, token: int) -> bool:
        return 0 <= token < self.vocab_size

    def most_of(self, tokens: int) -> int:
        """The most that one step computes of a sequence of `tokens`."""
        return self.max_chunk_tokens if tokens > self.long_prompt_tokens else self.max_num_batched_tokens

    def refusal(self, request: EngineRequest) -> str | None:
        """Return why `request` can never be served here, however long it waits; None when it can."""
        prompt, sampling = request.prompt_token_ids, request.sampling
        if not 1 <= len(prompt) < self.max_model_len:
            return f"a prompt has 1 to {self.max_model_len - 1} tokens, not {len(prompt)}"
        if min(prompt) < 0 or max(prompt) >= self.vocab_size:
            return f"token ids are 0 to {self.vocab_size - 1}; the prompt has {min(prompt)} to {max(prompt)}"
        if sampling.max_tokens < 1:
            return f"max_tokens must be at least 1, not {sampling.max_tokens}"
        if not 1 <= request.n <= MAX_REQUEST_ANSWERS:
            return f"n must be 1 to {MAX_REQUEST_ANSWERS}, not {request.n}"
        if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
            return f"temperature must be a number from 0, not {sampling.temperature}"
        if request.priority and self.policy is not Policy.PRIORITY:
            return f"priority {request.priority} needs the scheduling policy {Policy.PRIORITY}, this is {self.policy}"
        named = [*sampling.stop_token_ids, *(token for token, _ in sampling.logit_bias)]
        if any(not 0 <= token < self.vocab_size for token in named):
            return f"token ids are 0 to {self.vocab_size - 1}; stop_token_ids or logit_bias name others"
        longest = len(prompt) + (0 if request.embed else sampling.max_tokens)
        if min(longest, self.max_model_len) > self.capacity:
            return f"prompt and output may need more than the {self.capacity} tokens of the KV cache"
        return None


def pinnable(pages: int, share: float, page_size: int, max_model_len: int) -> int:
    """Return how many of `pages` may be pinned: their share, but none that the longest request needs."""
    return max(0, min(int(pages * share), pages - -(-max_model_len // page_size)))
