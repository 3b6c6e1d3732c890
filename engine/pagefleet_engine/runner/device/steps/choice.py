"""Chooses tokens on the host for a device: biases, penalties, grammars, several answers, requested log probabilities.

This stands beside `Sampler.choose` of the CPU: there one call of the operations draws every row. Here logits stay on the
device and only the rows that the host changes are copied. Both share `Sampler.adjust`, `answered`, and their keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch

from pagefleet_engine.core.requests import TokenLogprobs
from pagefleet_engine.core.sequence import TokenSequence
from pagefleet_engine.core.work import Work
from pagefleet_engine.runner.common.sampling import Key, Sampler, answered, logprobs, mixed
from pagefleet_engine.runner.device.steps.executor import StepLogits
from pagefleet_engine.runner.device.steps.state import State

Results = list[tuple[tuple[int, ...], ...]]


def chosen_by_host(work: Work) -> bool:
    """Whether the host must choose the tokens of the step with this work: its logits or last states are requested."""
    request = work.sequence.request
    if request.embed or (request.sampling.prompt_logprobs is not None and work.sequence.generated == 0):
        return True
    return work.samples and (not request.sampling.plain or work.answers > 1)


def seed(sampler: Sampler, answer: TokenSequence, index: int) -> int:
    """Return the key of one answer's draws besides the position: 64 bits with a sign."""
    value = mixed(sampler.seed(answer), index)
    return value - (1 << 64) if value >> 63 else value


def choose(
    work_items: Sequence[Work], result: StepLogits, state: State, sampler: Sampler
) -> tuple[Results, dict[Key, tuple[TokenLogprobs, ...]]]:
    """Choose each answer's token for the work items that sample, in the order of `result`; add log probabilities."""
    if not work_items:
        return [], {}
    logits = result.logits.float()
    firsts = [0, *accumulate(work.drafts + 1 for work in work_items)]
    raw = _adjusted(work_items, firsts, logits, sampler)
    rows = [[token] for token in state.drawn(logits, result.rows, result.positions).tolist()]
    _draw_others(work_items, firsts, logits, result, state, sampler, rows)
    results: Results = []
    token_logprobs: dict[Key, tuple[TokenLogprobs, ...]] = {}
    for place, work in enumerate(work_items):
        results.append(answers := answered(work, rows[firsts[place] : firsts[place + 1]]))
        if place in raw:
            most = work.sequence.request.sampling.logprobs or 0
            for index, (token, *_) in enumerate(answers):
                key = work.sequence.request_id, work.sequence.index + index
                token_logprobs[key] = (logprobs(raw[place], token, most),)
    return results, token_logprobs


def _adjusted(
    work_items: Sequence[Work], firsts: Sequence[int], logits: torch.Tensor, sampler: Sampler
) -> dict[int, torch.Tensor]:
    """Change the logits as requests ask. Return the log probabilities [vocab] before that, of the places that want them."""
    special = [place for place, work in enumerate(work_items) if not work.sequence.request.sampling.plain]
    if not special:
        return {}
    at = torch.tensor([firsts[place] for place in special], device=logits.device)
    here, raw = logits.index_select(0, at).cpu(), {}
    for row, place in zip(here, special, strict=True):
        answer = work_items[place].sequence
        if answer.request.sampling.logprobs is not None:
            raw[place] = row.log_softmax(dim=0)
        sampler.adjust(row, answer)
    logits.index_copy_(0, at, here.to(logits.device))
    return raw


def _draw_others(
    work_items: Sequence[Work],
    firsts: Sequence[int],
    logits: torch.Tensor,
    result: StepLogits,
    state: State,
    sampler: Sampler,
    rows: list[list[int]],
) -> None:
    """The first tokens of the second and later answers, from the same logits with seeds of their own."""
    others = [(place, index) for place, work in enumerate(work_items) for index in range(1, work.answers)]
    if not others:
        return
    seeds = np.array([seed(sampler, work_items[place].sequence, index) for place, index in others], np.int64)
    at = torch.tensor([firsts[place] for place, _ in others], device=logits.device)
    tokens = state.drawn(
        logits.index_select(0, at), result.rows.index_select(0, at), result.positions.index_select(0, at), seeds
    )
    for (place, _), token in zip(others, tokens.tolist(), strict=True):
        rows[firsts[place]].append(token)
