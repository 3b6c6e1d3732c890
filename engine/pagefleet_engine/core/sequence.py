"""One request while the engine works on it: its tokens, how far its KV has come, the pages that hold it."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagefleet_engine.core.requests import EngineRequest, Finish


@dataclass(eq=False)
class Sequence:
    """`computed` tokens of `tokens` have their keys and values in `pages`; the last sampled one never has yet.

    `number` counts requests as they came. `hashes` are those of the full pages of `tokens`, as far as they were
    needed; they outlive a preemption. The first `registered` of them are known to the pool.
    """

    request: EngineRequest
    number: int
    tokens: list[int]
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    registered: int = 0
    cached_tokens: int = 0
    first_scheduled: float | None = None

    @classmethod
    def of(cls, request: EngineRequest, number: int) -> Sequence:
        return cls(request, number, list(request.prompt_token_ids))

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def rank(self) -> tuple[int, int]:
        """The order of service: smaller goes first and is preempted last."""
        return -self.request.priority, self.number

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

    def append(self, token: int, eos_token_ids: frozenset[int], max_model_len: int) -> Finish | None:
        """Take a sampled token; says why the sequence ends with it, if it does."""
        self.tokens.append(token)
        sampling = self.request.sampling
        if token in sampling.stop_token_ids or (token in eos_token_ids and not sampling.ignore_eos):
            return Finish.STOP
        if self.generated >= sampling.max_tokens or len(self.tokens) >= max_model_len:
            return Finish.LENGTH
        return None
