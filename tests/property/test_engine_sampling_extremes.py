"""Protects the choice of a token from any two sampling fields at the ends of their ranges, on any logits: with each of the
CPU's kernels it is a token of the vocabulary, one that is not forbidden, and both choose the same where there is no draw.
"""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.engine.reference import KERNELS

from pagefleet_engine.api.base.errors import ApiError
from pagefleet_engine.api.parameters import Parameters, parse
from pagefleet_engine.api.parameters.generation import CHAT, COMPLETION
from pagefleet_engine.api.planning.plan import GREEDY_BELOW
from pagefleet_engine.core.requests import EngineRequest, SamplingParams
from pagefleet_engine.core.sequence import TokenSequence
from pagefleet_engine.core.work import Work
from pagefleet_engine.runner.common.sampling import Sampler
from pagefleet_kernels.cpu import Draw, Operations, operations

EOS = 2
NUMBERS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "min_tokens", "logprobs", "n",
)  # fmt: skip


def ends(name: str) -> list[Any]:
    """The ends of a field's range, as its schema states them, and what is nearest to an end that is not in it."""
    schema = COMPLETION[name].schema
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    if "exclusiveMinimum" in schema:
        return [math.nextafter(low, math.inf), 1e-40, schema["maximum"]]
    return [low, schema["maximum"]]


def beyond(name: str) -> list[Any]:
    schema = COMPLETION[name].schema
    if "integer" in schema["type"]:
        return [schema["minimum"] - 1, schema["maximum"] + 1]
    low = [schema["exclusiveMinimum"]] if "exclusiveMinimum" in schema else []
    return [*low, math.nextafter(schema.get("minimum", low and low[0]), -math.inf), 2 * schema["maximum"], 1e308]


EXTREMES: dict[str, list[Any]] = {
    **{name: ends(name) for name in NUMBERS},
    "logit_bias": [{}, {"0": -100, "1": -100}, {str(token): 100 for token in range(300)}, {"1": 100, "01": 100}],
    "stop_token_ids": [[], list(range(100))],
}
PAIRS: list[dict[str, Any]] = [
    {one: first, other: second}
    for one, other in combinations(EXTREMES, 2)
    for first, second in product(EXTREMES[one], EXTREMES[other])
]
PROMPT, SAID = (5, 6, 5, 7, 0, 1), (8, 6, 8, 8)


def sampling(pair: dict[str, Any]) -> SamplingParams:
    """As the API hands it to the engine."""
    read: Parameters = parse({"model": "m", "prompt": "x", **pair}, chat=False)
    same = ("top_p", "top_k", "min_p", "seed", "stop_token_ids", "min_tokens", "presence_penalty", "frequency_penalty",
            "repetition_penalty", "logit_bias", "logprobs")  # fmt: skip
    heat = read.temperature if read.temperature >= GREEDY_BELOW else 0.0
    return SamplingParams(100, temperature=heat, **{name: getattr(read, name) for name in same})


def works() -> list[Work]:
    tokens = [*PROMPT, *SAID]
    return [
        Work(
            TokenSequence(EngineRequest(str(index), PROMPT, sampling(pair), 0.0), index, b"", tokens[:]),
            len(tokens) - 1,
            1,
        )
        for index, pair in enumerate(PAIRS)
    ]


STRANGE = (math.nan, math.inf, -math.inf, 3.4e38, -3.4e38, 1e30, -1e-45, 0.0)


def logits(vocab: int, seed: int, scale: float, strange: list[tuple[int, float]]) -> torch.Tensor:
    row = torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * scale
    for place, value in strange:
        row[place % vocab] = value
    return row


ROWS = st.builds(
    logits,
    st.sampled_from([301, 513, 1100, 4096]),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 1e-30, 1.0, 30.0, 1e4, 1e30, 3e38]),
    st.lists(st.tuples(st.integers(0, 4095), st.sampled_from(STRANGE)), max_size=6),
)


@pytest.fixture(scope="module", params=KERNELS)
def ops(request: pytest.FixtureRequest) -> Operations:
    torch.set_num_threads(1)
    return operations(2, request.param)


def no_grammars() -> Any:
    raise AssertionError("no grammar was asked for")


@settings(max_examples=12)
@given(ROWS)
@example(logits(4096, 1, 10.0, []))
@example(torch.full((1100,), -math.inf))
@example(torch.full((1100,), math.nan))
def test_any_two_fields_at_their_ends_choose_a_token(ops: Operations, row: torch.Tensor) -> None:
    table = row.expand(len(PAIRS), -1).contiguous()
    results, token_logprobs = Sampler(ops, [EOS], no_grammars).choose(works(), table)
    for pair, changed, ((token,),) in zip(PAIRS, table, results, strict=True):
        assert 0 <= token < len(row), pair
        numbers = changed.nan_to_num(-math.inf, math.inf, -math.inf)
        if bool((numbers > -math.inf).any()):
            assert float(numbers[token]) > -math.inf, pair
    assert len(token_logprobs) == sum(work.sequence.request.sampling.logprobs is not None for work in works())


def usable(row: torch.Tensor, draw: Draw) -> bool:
    """Whether probabilities can be made of a row, as both kernels judge it."""
    heat = torch.tensor(draw.temperature)
    return heat > 0 and not bool(row.isnan().any()) and bool((row.max() * (torch.tensor(1.0) / heat)).isfinite())


@settings(max_examples=60)
@given(ROWS, st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1e-45, 1e-20, GREEDY_BELOW, 1.0, 2.0, 3e38]))
@example(logits(1100, 1, 1.0, [(700, math.inf)]), 0.999, 1.0)
@example(logits(1100, 1, 1.0, [(3, math.nan)]), 0.5, 1.0)
@example(torch.full((513,), -math.inf), 0.5, 1.0)
@example(torch.full((513,), math.nan), 0.5, 0.0)
def test_without_a_distribution_it_is_the_first_of_the_largest(row: torch.Tensor, uniform: float, heat: float) -> None:
    """Also cuts beyond what the API allows. Where there is one the kernels may differ by the rounding of a sum."""
    cuts: list[dict[str, Any]] = [
        {}, {"top_k": 1}, {"top_k": 40}, {"top_k": 2**31 - 1}, {"top_p": 1e-40}, {"top_p": 0.0}, {"top_p": 0.5},
        {"min_p": 1e-45}, {"min_p": 1.0}, {"min_p": 2.0}, {"top_k": 5, "top_p": 1e-40, "min_p": 2.0},
    ]  # fmt: skip
    draws = [Draw(0, uniform, heat, **cut) for cut in cuts]
    several = [operations(2, name).sample(row.unsqueeze(0), draws) for name in _kernels()]
    numbers = row.nan_to_num(-math.inf, math.inf, -math.inf)
    first = int((numbers == numbers.max()).nonzero()[0])
    for chosen in several:
        assert all(0 <= token < len(row) for token in chosen)
        for token, draw in zip(chosen, draws, strict=True):
            if not usable(row, draw) or draw.min_p > 1:
                assert token == first, draw
    if not usable(row, draws[0]):
        assert all(chosen == several[0] for chosen in several)


def _kernels() -> list[str]:
    from pagefleet_kernels.cpu import library

    return ["reference", *(one.name for one in library.usable())]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("chat", [True, False])
def test_what_is_beyond_the_ends_is_refused_with_the_range(name: str, chat: bool) -> None:
    body = {"model": "m", **({"messages": [{"role": "user", "content": "x"}]} if chat else {"prompt": "x"})}
    table = CHAT if chat else COMPLETION
    if name == "logprobs" and chat:
        name, body = "top_logprobs", {**body, "logprobs": True}
    for value in ends("logprobs" if name == "top_logprobs" else name):
        parse({**body, name: value}, chat=chat)
    for value in beyond("logprobs" if name == "top_logprobs" else name):
        with pytest.raises(ApiError) as refused:
            parse({**body, name: value}, chat=chat)
        error = refused.value
        assert (error.status, error.param) == (400, name)
        assert (
            f"{table[name].schema['maximum']:g}" in error.message or str(table[name].schema["maximum"]) in error.message
        )


@pytest.mark.parametrize("bias", [100.5, -101, 1e308, math.nan, "1", True])
def test_a_bias_beyond_100_is_refused(bias: Any) -> None:
    with pytest.raises(ApiError) as refused:
        parse({"model": "m", "prompt": "x", "logit_bias": {"5": bias}}, chat=False)
    assert refused.value.param == "logit_bias" and "-100 to 100" in refused.value.message
