"""Chooses tokens from logits: bias, penalties and grammars, then argmax or a draw keyed on (seed, index, position)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from pagefleet_engine.core.requests import SamplingParams, TokenLogprobs
from pagefleet_engine.core.sequence import TokenSequence
from pagefleet_engine.core.work import Work
from pagefleet_engine.runner.common.grammar import Grammars, Matcher
from pagefleet_kernels.cpu import Draw, Operations

MASK = 2**64 - 1
# The bound of logits that requests have changed: small enough to be divided by any temperature that is not greedy.
MAX_LOGIT = 1e30
Key = tuple[str, int]


def mixed(*values: int) -> int:
    """Hash the values to 64 bits: SplitMix64 (Steele et al., OOPSLA 2014)."""
    state = 0
    for value in values:
        state = (state ^ (value & MASK)) + 0x9E3779B97F4A7C15 & MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & MASK
        state ^= state >> 31
    return state


def uniform(seed: int, index: int, position: int) -> float:
    """Draw a number in [0, 1) that depends on the three arguments only."""
    return (mixed(seed, index, position) >> 11) * 2.0**-53


@dataclass
class History:
    """The state that one answer's next token depends on besides its logits. Rebuilt from the tokens when it is missing."""

    counts: dict[int, int] = field(default_factory=dict)  # of generated tokens
    matcher: Matcher | None = None
    counted: int = 0  # generated tokens that `counts` and the grammar have

    def follow(self, answer: TokenSequence) -> None:
        for token in answer.tokens[answer.prompt_tokens + self.counted :]:
            if self.matcher is not None:
                self.matcher.accept(token)
            self.counts[token] = self.counts.get(token, 0) + 1
            self.counted += 1


class Sampler:
    """Keeps a History for each answer that needs one. `grammars` is called when a grammar is first asked for."""

    def __init__(self, operations: Operations, eos_token_ids: Sequence[int], grammars: Callable[[], Grammars]) -> None:
        self._operations, self._grammars, self._eos = operations, grammars, list(eos_token_ids)
        self._histories: dict[Key, History] = {}
        self._entropy = secrets.randbits(64)

    def forget(self, request_id: str, index: int) -> None:
        self._histories.pop((request_id, index), None)

    def check(self, sampling: SamplingParams) -> None:
        """Raises ValueError for a grammar that cannot be followed."""
        if sampling.grammar is not None:
            self._grammars().compile(sampling.grammar)

    def choose(
        self, work_items: Sequence[Work], logits: torch.Tensor
    ) -> tuple[list[tuple[tuple[int, ...], ...]], dict[Key, tuple[TokenLogprobs, ...]]]:
        """Choose the tokens of each answer of the work items that sample; `logits` [rows, vocab] has their rows in order.

        Return them with the requested log probabilities. The logits are changed.
        """
        raw = self._raw_logprobs(work_items, logits)
        row = 0
        for work in work_items:
            if not work.sequence.request.sampling.plain:
                self.adjust(logits[row], work.sequence)
            row += work.drafts + 1
        chosen = self._tokens(work_items, logits)
        results: list[tuple[tuple[int, ...], ...]] = []
        token_logprobs: dict[Key, tuple[TokenLogprobs, ...]] = {}
        row = 0
        for work in work_items:
            sequence, rows = work.sequence, chosen[row : row + work.drafts + 1]
            results.append(answers := answered(work, rows))
            if row in raw:
                for index, (token, *_) in enumerate(answers):
                    most = sequence.request.sampling.logprobs or 0
                    token_logprobs[sequence.request_id, sequence.index + index] = (logprobs(raw[row], token, most),)
            row += work.drafts + 1
        return results, token_logprobs

    def draw(self, answer: TokenSequence, row: int, ahead: int, index: int | None = None) -> Draw:
        """Return the draw of the token `ahead` places after the last one; `index` is the answer's own if it is not given."""
        sampling = answer.request.sampling
        if sampling.temperature <= 0:
            return Draw(row, 0.0, 0.0)
        number = uniform(self.seed(answer), answer.index if index is None else index, len(answer.tokens) + ahead)
        return Draw(row, number, sampling.temperature, sampling.top_p, sampling.min_p, sampling.top_k)

    def seed(self, answer: TokenSequence) -> int:
        """The request's own, or one that no other request is likely to have."""
        given = answer.request.sampling.seed
        return self._entropy ^ hash(answer.request_id) if given is None else given

    def _tokens(self, work_items: Sequence[Work], logits: torch.Tensor) -> list[list[int]]:
        """Draw each row's token, and those of the other answers at the end of a prompt."""
        draws: list[Draw] = []
        rows = 0
        for work in work_items:
            for ahead in range(work.drafts + 1):
                indexes = range(work.answers) if work.answers > 1 else (None,)
                draws += [self.draw(work.sequence, rows, ahead, index) for index in indexes]
                rows += 1
        tokens: list[list[int]] = [[] for _ in range(rows)]
        for draw, token in zip(draws, self._operations.sample(logits, draws), strict=True):
            tokens[draw.row].append(token)
        return tokens

    def _raw_logprobs(self, work_items: Sequence[Work], logits: torch.Tensor) -> dict[int, torch.Tensor]:
        """Return the log probabilities of the rows for which they are requested, before the logits are changed."""
        raw, row = {}, 0
        for work in work_items:
            if work.sequence.request.sampling.logprobs is not None:
                raw[row] = logits[row].log_softmax(dim=0)
            row += work.drafts + 1
        return raw

    def adjust(self, row: torch.Tensor, answer: TokenSequence) -> None:
        """Apply the bias, penalties and grammar of the answer's next token to its logits [vocab] on the CPU, in place."""
        sampling = answer.request.sampling
        history = self._history(answer)
        if sampling.logit_bias:
            ids, values = zip(*sampling.logit_bias, strict=True)
            row.index_add_(0, torch.tensor(ids), torch.tensor(values))
        if sampling.repetition_penalty != 1:
            present = torch.tensor(sorted({*answer.request.prompt_token_ids, *history.counts}))
            scores = row[present]
            row[present] = torch.where(
                scores > 0, scores / sampling.repetition_penalty, scores * sampling.repetition_penalty
            )
        if history.counts and (sampling.frequency_penalty or sampling.presence_penalty):
            present, counts = torch.tensor(list(history.counts)), torch.tensor(list(history.counts.values()))
            row[present] -= sampling.frequency_penalty * counts + sampling.presence_penalty
        if sampling.moves_logits:
            row.clamp_(-MAX_LOGIT, MAX_LOGIT)
        if history.matcher is not None:
            history.matcher.fill(row)
        if answer.generated < sampling.min_tokens:
            ends = [*self._eos, *sampling.stop_token_ids]
            allowed = row[ends]
            row[ends] = float("-inf")
            if history.matcher is not None and row.max() == float("-inf"):  # a grammar that has ended allows no more
                row[ends] = allowed

    def _history(self, answer: TokenSequence) -> History:
        key = answer.request_id, answer.index
        history = self._histories.get(key)
        if history is None:
            grammar = answer.request.sampling.grammar
            history = History(matcher=None if grammar is None else self._grammars().compile(grammar))
            self._histories[key] = history
        history.follow(answer)
        return history


def answered(work: Work, rows: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each of a work's answers. `rows` are those drawn of each of its rows, one for each answer.

    Of one answer they are the tokens up to the first one behind a rejected draft token: at least one.
    """
    if work.answers > 1:
        return tuple((token,) for token in rows[0])
    drawn, draft, accepted = [tokens[0] for tokens in rows], work.sequence.draft[: work.drafts], 0
    while accepted < len(draft) and draft[accepted] == drawn[accepted]:
        accepted += 1
    return (tuple(drawn[: accepted + 1]),)


def logprobs(row: torch.Tensor, token: int, most: int) -> TokenLogprobs:
    """Return the log probabilities that a client gets for `token`, from those of its place [vocab]."""
    value = float(row[token])
    rank = int((row > value).sum()) + 1
    if not most:
        return TokenLogprobs(token, value, rank)
    best = row.topk(min(most, row.shape[0]))
    return TokenLogprobs(token, value, rank, tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
