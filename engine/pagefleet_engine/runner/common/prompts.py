"""Computes the embeddings of prompts and the log probabilities of their tokens, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from pagefleet_engine.core.requests import EngineRequest, Pooling, TokenLogprobs, TokenOutput
from pagefleet_engine.core.work import Work
from pagefleet_engine.runner.common.sampling import logprobs

LOGIT_ROWS = 64  # of a prompt at a time: each has a number for every token of the vocabulary


class Prompts:
    """Collects results over the steps that compute a prompt, and adds them to the request's first or only output.

    `logits` returns [rows, vocab] of at most LOGIT_ROWS last states.
    """

    def __init__(self, logits: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._logits = logits
        self._pooled: dict[str, torch.Tensor] = {}
        self._token_logprobs: dict[str, list[TokenLogprobs]] = {}

    def collects_any(self, work_items: Sequence[Work]) -> bool:
        """Whether `take` would collect a result of one of them."""
        return any(self._collects(work) for work in work_items)

    def take(self, work_items: Sequence[Work], hidden: torch.Tensor) -> None:
        """Collect the results of all `work_items`, or raise. `hidden` [n, hidden]: the last states of their tokens in order, on any
        device; only the pooled ones leave it.
        """
        begin = 0
        pooled: dict[str, torch.Tensor] = {}
        every: dict[str, list[TokenLogprobs]] = {}
        for work in work_items:
            rows, request = hidden[begin : begin + work.count], work.sequence.request
            begin += work.count
            if not self._collects(work):
                continue
            if request.embed:
                before = None if work.start == 0 else self._pooled[request.request_id]
                pooled[request.request_id] = _pool(request, rows.float(), before)
            elif (most := request.sampling.prompt_logprobs) is not None:
                earlier = [] if work.start == 0 else self._token_logprobs[request.request_id]
                every[request.request_id] = earlier + self._follow(work, rows, most)
        self._pooled |= pooled
        self._token_logprobs |= every

    def _collects(self, work: Work) -> bool:
        request = work.sequence.request
        return request.embed or (request.sampling.prompt_logprobs is not None and work.sequence.generated == 0)

    def _follow(self, work: Work, rows: torch.Tensor, most: int) -> list[TokenLogprobs]:
        """Return the log probabilities of the prompt's tokens after each row; the last row's next token is the answer's."""
        following = work.sequence.request.prompt_token_ids[work.start + 1 : work.start + work.count + 1]
        found: list[TokenLogprobs] = []
        for begin in range(0, len(following), LOGIT_ROWS):
            tokens = following[begin : begin + LOGIT_ROWS]
            tables = self._logits(rows[begin : begin + len(tokens)].contiguous()).log_softmax(dim=1)
            found += [logprobs(table, token, most) for table, token in zip(tables, tokens, strict=True)]
        return found

    def complete(self, output: TokenOutput) -> TokenOutput:
        """Return the output with the results that were collected for it."""
        pooled = self._pooled.pop(output.request_id, None)
        if pooled is not None and output.finish_reason == "stop":
            return replace(output, embedding=tuple(pooled.tolist()))
        if (
            output.index == 0
            and output.token_ids
            and (token_logprobs := self._token_logprobs.pop(output.request_id, None)) is not None
        ):
            return replace(output, prompt_logprobs=tuple(token_logprobs))
        return output

    def forget(self, request_id: str) -> None:
        self._pooled.pop(request_id, None)
        self._token_logprobs.pop(request_id, None)


def _pool(request: EngineRequest, rows: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
    """Add the states of a chunk of a text to what its earlier chunks gave."""
    match request.pooling:
        case Pooling.MEAN:
            share = rows.sum(dim=0) / len(request.prompt_token_ids)
            return share if before is None else before + share
        case Pooling.LAST:
            return rows[-1].clone()
        case Pooling.CLS:
            return rows[0].clone() if before is None else before
