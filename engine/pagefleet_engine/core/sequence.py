"""One answer while the engine works on it: its tokens, how far its KV has come, the pages that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pagefleet_engine.core.requests import EngineRequest, Finish


@dataclass(eq=False)
class TokenSequence:
    """`computed` tokens of `tokens` have their keys and values in `pages`; the last sampled one never has yet.

    `number` counts requests as they came, `index` the answers of one. `root` is what the first page's hash is chained
    to. `hashes` are those of the full pages of `tokens`, as far as they were needed; they outlive a preemption. The
    first `registered` of them are known to the pool; `awaited` is the last one that another sequence computes for this one.
    `draft` are draft tokens that may follow. `closing`: its last token is on its way, and nothing more is to be computed.
    """

    request: EngineRequest
    number: int
    root: bytes
    tokens: list[int]
    index: int = 0
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    registered: int = 0
    awaited: bytes = b""
    cached_tokens: int = 0
    first_scheduled: float | None = None
    runs: bool = False
    closing: bool = False
    draft: tuple[int, ...] = ()

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def rank(self) -> tuple[int, int, int]:
        """The order of service: smaller goes first and is preempted last."""
        return -self.request.priority, self.number, self.index

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are still to be computed."""
        return len(self.tokens) - self.computed

    def late(self, now: float) -> bool:
        """Whether its request's deadline has passed."""
        return self.request.deadline is not None and self.request.deadline <= now

    @property
    def unregistered(self) -> list[bytes]:
        """Hashes of full pages that nobody can find yet: those that this sequence will compute."""
        return self.hashes[self.registered :]

    @property
    def whole(self) -> bool:
        """Whether every position has to be computed: nothing may come from the prefix cache."""
        return self.request.embed or (self.request.sampling.prompt_logprobs is not None and self.generated == 0)

    def append(self, token: int, eos_token_ids: frozenset[int], max_model_len: int) -> Finish | None:
        """Take a sampled token; says why the sequence ends with it, if it does."""
        self.tokens.append(token)
        sampling = self.request.sampling
        # What a grammar has ended says no more: nothing but end-of-text tokens are allowed after it.
        heeds_eos = not sampling.ignore_eos or sampling.grammar is not None
        if token in sampling.stop_token_ids or (token in eos_token_ids and heeds_eos):
            return Finish.STOP
        if self.generated >= sampling.max_tokens or len(self.tokens) >= max_model_len:
            return Finish.LENGTH
        return None

    def fork(self, index: int) -> TokenSequence:
        """Another answer to the same prompt, without its first token. Shares nothing that can change; no pages."""
        return TokenSequence(
            self.request, self.number, self.root, list(self.request.prompt_token_ids), index,
            hashes=self.hashes[:], cached_tokens=self.cached_tokens, first_scheduled=self.first_scheduled,
        )  # fmt: skip


def pages_to_come(running: Sequence[TokenSequence]) -> dict[bytes, int]:
    """Return the hashes of the pages that these are computing and that nobody can find yet, each with the highest priority that computes
    it. `running` is in the order of service."""
    return {digest: one.request.priority for one in reversed(running) for digest in one.unregistered}
