"""Chooses tokens on the host for a device: biases, penalties, grammars, several answers, requested log probabilities.

This stands beside `Sampler.choose` of the CPU: there a draft is verified and one call of the operations draws every row. Here
logits stay on the device and only the rows that the host changes are copied. Both share `Sampler.adjust`, and their keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pagefleet_engine.core.requests import TokenLogprobs
from pagefleet_engine.core.sequence import TokenSequence
from pagefleet_engine.core.work import Work
from pagefleet_engine.runner.common.sampling import Key, Sampler, logprobs, mixed
from pagefleet_engine.runner.device.steps.executor import StepLogits
from pagefleet_engine.runner.device.steps.state import State

Results = list[tuple[tuple[int, ...], ...]]


def chosen_by_host(work: Work) -> bool:
    """Whether the step with this work cannot be left to the device: its logits or last states are wanted."""
    request = work.sequence.request
    if request.embed or (request.sampling.prompt_logprobs is not None and work.sequence.generated == 0):
        return True
    return work.samples and (not request.sampling.plain or work.answers > 1)


def seed(sampler: Sampler, answer: TokenSequence, index: int) -> int:
    """What one answer's draws are keyed on besides the position: 64 bits with a sign."""
    value = mixed(sampler.seed(answer), index)
    return value - (1 << 64) if value >> 63 else value


def choose(
    works: Sequence[Work], result: StepLogits, state: State, sampler: Sampler
) -> tuple[Results, dict[Key, tuple[TokenLogprobs, ...]]]:
    """For each of the works that sample, whose logits are in `result`, in order: each answer's token; what is said."""
    if not works:
        return [], {}
    logits = result.logits.float()
    raw = _adjusted(works, logits, sampler)
    rows = [[token] for token in state.draw(logits, result.rows, result.positions).tolist()]
    _draw_others(works, logits, result, state, sampler, rows)
    results: Results = []
    said: dict[Key, tuple[TokenLogprobs, ...]] = {}
    for place, (work, tokens) in enumerate(zip(works, rows, strict=True)):
        results.append(tuple((token,) for token in tokens))
        if place in raw:
            most = work.sequence.request.sampling.logprobs or 0
            for index, token in enumerate(tokens):
                key = work.sequence.request_id, work.sequence.index + index
                said[key] = (logprobs(raw[place], token, most),)
    return results, said


def _adjusted(works: Sequence[Work], logits: torch.Tensor, sampler: Sampler) -> dict[int, torch.Tensor]:
    """Change the logits as requests ask; log probabilities [vocab] before that, of the places that want them said."""
    special = [place for place, work in enumerate(works) if not work.sequence.request.sampling.plain]
    if not special:
        return {}
    at = torch.tensor(special, device=logits.device)
    here, raw = logits.index_select(0, at).cpu(), {}
    for row, place in zip(here, special, strict=True):
        answer = works[place].sequence
        if answer.request.sampling.logprobs is not None:
            raw[place] = row.log_softmax(dim=0)
        sampler.adjust(row, answer)
    logits.index_copy_(0, at, here.to(logits.device))
    return raw


def _draw_others(
    works: Sequence[Work],
    logits: torch.Tensor,
    result: StepLogits,
    state: State,
    sampler: Sampler,
    rows: list[list[int]],
) -> None:
    """The first tokens of the second and later answers, from the same logits with seeds of their own."""
    wanted = [(place, index) for place, work in enumerate(works) for index in range(1, work.answers)]
    if not wanted:
        return
    seeds = np.array([seed(sampler, works[place].sequence, index) for place, index in wanted], np.int64)
    at = torch.tensor([place for place, _ in wanted], device=logits.device)
    tokens = state.drawn_again(
        logits.index_select(0, at), result.rows.index_select(0, at), seeds, result.positions.index_select(0, at)
    )
    for (place, _), token in zip(wanted, tokens.tolist(), strict=True):
        rows[place].append(token)
