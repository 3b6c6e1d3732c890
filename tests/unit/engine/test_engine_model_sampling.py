"""Protects how a token is chosen from logits: penalties and bias, cuts, the distribution of draws, seeds, and the log
probabilities of the choice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from support.engine.compiled_operations import NEEDS_COMPILED
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pagefleet_engine.core.requests import EngineRequest, SamplingParams
from pagefleet_engine.core.sequence import TokenSequence
from pagefleet_engine.core.work import Work
from pagefleet_engine.runner.common.sampling import Sampler, logprobs, uniform
from pagefleet_kernels.cpu import Operations, operations

EOS = 2
PROMPT, ANSWERED = (5, 6, 5, 7), (8, 6, 8, 8)


@pytest.fixture(
    params=[
        pytest.param("native", marks=NEEDS_COMPILED),
        "reference",
    ]
)
def ops(request: pytest.FixtureRequest) -> Operations:
    torch.set_num_threads(1)
    return operations(2, request.param)


def no_grammars() -> Any:
    raise AssertionError("no grammar was asked for")


def sampler(ops: Operations) -> Sampler:
    return Sampler(ops, [EOS], no_grammars)


def work(name: str = "a", answered: tuple[int, ...] = ANSWERED, n: int = 1, index: int = 0, **sampling: Any) -> Work:
    """Return the step that computes the last known token of an answer whose tokens so far are `answered`."""
    params = SamplingParams(**{"max_tokens": 100, **sampling})
    request = EngineRequest(name, PROMPT, params, 0.0, n=n)
    tokens = [*PROMPT, *answered]
    return Work(TokenSequence(request, 0, b"", tokens, index), len(tokens) - 1, 1)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def changed(ops: Operations, **sampling: Any) -> torch.Tensor:
    """Return random logits [1, 40] after the changes of a request."""
    logits = random(1, 40) * 3
    sampler(ops).choose([work(**sampling)], logits)
    return logits


@pytest.mark.parametrize("answered", [ANSWERED, ()])
@pytest.mark.parametrize("penalty", [1.3, 0.8])
def test_the_repetition_penalty_is_transformers(ops: Operations, penalty: float, answered: tuple[int, ...]) -> None:
    ids = torch.tensor([[*PROMPT, *answered]])
    expected = RepetitionPenaltyLogitsProcessor(penalty)(ids, random(1, 40) * 3)
    torch.testing.assert_close(changed(ops, repetition_penalty=penalty, answered=answered), expected)


def test_frequency_and_presence_penalties_are_openais(ops: Operations) -> None:
    """logit - count * frequency - (count > 0) * presence, of the answer's tokens, not of the prompt's."""
    expected = random(1, 40) * 3
    for token, count in Counter(ANSWERED).items():
        expected[0, token] -= count * 0.7 + 0.4
    torch.testing.assert_close(changed(ops, frequency_penalty=0.7, presence_penalty=0.4), expected)
    expected = random(1, 40) * 3
    for token in set(ANSWERED):
        expected[0, token] += 1.5
    torch.testing.assert_close(changed(ops, presence_penalty=-1.5), expected)
    assert torch.equal(changed(ops, frequency_penalty=2.0, answered=()), random(1, 40) * 3)


def test_logit_bias_is_added(ops: Operations) -> None:
    expected = SequenceBiasLogitsProcessor([[[3], 5.0], [[39], -100.0]])(torch.tensor([[1]]), random(1, 40) * 3)
    torch.testing.assert_close(changed(ops, logit_bias=((3, 5.0), (39, -100.0))), expected)


@pytest.mark.parametrize("least", [0, 4, 5])
def test_min_tokens_forbid_the_end(ops: Operations, least: int) -> None:
    ids = torch.tensor([[*PROMPT, *ANSWERED]])
    ends = [EOS, 30]
    expected = MinNewTokensLengthLogitsProcessor(len(PROMPT), least, ends, device="cpu")(ids, random(1, 40) * 3)
    assert torch.equal(changed(ops, min_tokens=least, stop_token_ids=(30,)), expected)


def test_a_model_without_an_end_has_none_to_forbid(ops: Operations) -> None:
    logits = random(1, 40)
    Sampler(ops, [], no_grammars).choose([work(min_tokens=50)], logits)
    assert torch.equal(logits, random(1, 40))


def test_penalties_follow_an_answer_as_it_grows_and_start_anew_after_it(ops: Operations) -> None:
    served, answered, expected = sampler(ops), ANSWERED, random(1, 40)
    for _ in range(3):
        logits = random(1, 40)
        [((token,),)], _ = served.choose([work(answered=answered, frequency_penalty=0.6)], logits)
        penalised = expected.clone()
        for known, count in Counter(answered).items():
            penalised[0, known] -= 0.6 * count
        torch.testing.assert_close(logits, penalised)
        assert token == int(penalised.argmax())
        answered = (*answered, token)
    served.forget("a", 0)
    logits = random(1, 40)
    served.choose([work(answered=(), frequency_penalty=0.6)], logits)
    assert torch.equal(logits, random(1, 40))


def test_each_row_is_changed_by_its_own_request_alone(ops: Operations) -> None:
    logits = random(4, 40)
    works = [work("a"), work("b", logit_bias=((1, 50.0),)), work("c", presence_penalty=1.0), work("d")]
    results, token_logprobs = sampler(ops).choose(works, logits)
    assert torch.equal(logits[[0, 3]], random(4, 40)[[0, 3]])
    assert results == [((int(token),),) for token in logits.argmax(dim=1)]
    assert results[1] == ((1,),)
    assert token_logprobs == {}


SHARES = torch.tensor([0.5, 0.3, 0.15, 0.05])


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 9}, {0, 1, 2, 3}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.6}, {0, 1}),
        ({"top_p": 0.0001}, {0}),
        ({"min_p": 0.29}, {0, 1, 2}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 3, "top_p": 0.8}, {0, 1}),
        ({"top_k": 3, "top_p": 0.86}, {0, 1, 2}),  # of what top-k leaves: 0.84 and 0.16
        ({"temperature": 0.01}, {0}),
    ],
)
def test_cuts_keep_what_their_papers_say(ops: Operations, sampling: dict[str, Any], expected: set[int]) -> None:
    served, logits = sampler(ops), SHARES.log().unsqueeze(0)
    drawn = {
        served.choose([work(answered=(0,) * place, **{"temperature": 1.0, "seed": 5, **sampling})], logits.clone())[0][
            0
        ][0][0]
        for place in range(1, 400)
    }
    assert drawn == expected


@pytest.mark.parametrize(
    "cuts",
    [{}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.04}, {"top_k": 12, "top_p": 0.9, "min_p": 0.08}],
    ids=lambda cuts: ",".join(cuts) or "none",
)
def test_draws_follow_the_distribution_that_transformers_cuts(ops: Operations, cuts: dict[str, Any]) -> None:
    """Chi-square of 8,000 seeded draws; by chance it exceeds the bound once in 10^6 sets of seeds."""
    logits, temperature, count = random(1, 30) * 2, 0.8, 8000
    scores = TemperatureLogitsWarper(temperature)(torch.tensor([[1]]), logits)
    for name, warper in (("top_k", TopKLogitsWarper), ("top_p", TopPLogitsWarper), ("min_p", MinPLogitsWarper)):
        if name in cuts:
            scores = warper(cuts[name])(torch.tensor([[1]]), scores)
    exact = scores.softmax(dim=1)[0].double()
    works = [work(str(seed), seed=seed, temperature=temperature, **cuts) for seed in range(count)]
    results, _ = sampler(ops).choose(works, logits.expand(count, -1).contiguous())
    counts = torch.bincount(torch.tensor([token for ((token,),) in results]), minlength=30).double()
    possible = exact > 0
    assert not counts[~possible].any()
    deviation = float(((counts - count * exact)[possible] ** 2 / (count * exact[possible])).sum())
    freedom = int(possible.sum()) - 1
    assert deviation < freedom + 5 * (2 * freedom) ** 0.5 + 10, (deviation, freedom)


def test_a_seed_fixes_a_draw_whatever_stands_beside_it(ops: Operations) -> None:
    flat, sampling = torch.zeros(1, 10000), {"temperature": 1.0, "seed": -3}
    [alone], _ = sampler(ops).choose([work("x", **sampling)], flat.clone())
    others = [work("a"), work("b", temperature=2.0), work("other name", **sampling), work("c", temperature=0.1, seed=9)]
    together, _ = sampler(ops).choose(others, torch.zeros(4, 10000))
    assert together[2] == alone
    [later], _ = sampler(ops).choose([work("x", answered=(*ANSWERED, 1), **sampling)], flat.clone())
    [other], _ = sampler(ops).choose([work("x", **{**sampling, "seed": -2})], flat.clone())
    assert len({alone, later, other}) == 3


def test_without_a_seed_requests_and_processes_differ(ops: Operations) -> None:
    served = sampler(ops)
    tokens = [served.choose([work(str(name), temperature=1.0)], torch.zeros(1, 10000))[0][0] for name in range(20)]
    assert len(set(tokens)) > 15
    assert served.choose([work("0", temperature=1.0)], torch.zeros(1, 10000))[0][0] == tokens[0], "computed again"
    again = sampler(ops)
    assert [
        again.choose([work(str(name), temperature=1.0)], torch.zeros(1, 10000))[0][0] for name in range(20)
    ] != tokens


def test_answers_to_one_prompt_are_drawn_apart_and_go_on_apart(ops: Operations) -> None:
    sampling = {"temperature": 1.0, "seed": 1}
    [first], _ = sampler(ops).choose([work(answered=(), n=20, **sampling)], torch.zeros(1, 10000))
    assert len(first) == 20
    assert len(set(first)) > 15
    [single], _ = sampler(ops).choose([work(answered=(), **sampling)], torch.zeros(1, 10000))
    assert single[0] == first[0]
    works = [work(answered=(4,), n=20, index=index, **sampling) for index in range(20)]
    second, _ = sampler(ops).choose(works, torch.zeros(20, 10000))
    assert len(set(second)) > 15
    [greedy], _ = sampler(ops).choose([work(answered=(), n=3)], random(1, 40))
    assert greedy == ((int(random(1, 40).argmax()),),) * 3


def test_the_numbers_are_uniform_and_depend_on_all_three() -> None:
    numbers = torch.tensor(
        [uniform(seed, index, place) for seed in range(20) for index in range(8) for place in range(60)]
    )
    assert 0 <= float(numbers.min()) < 1e-3
    assert 0.999 < float(numbers.max()) < 1
    counts = torch.bincount((numbers * 16).long(), minlength=16)
    assert bool(((counts - 600).abs() < 130).all()), counts
    assert (
        len({uniform(*key) for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**64 - 1, 0, 0), (-2, 0, 0))}) == 6
    )
    assert uniform(-1, 0, 0) == uniform(2**64 - 1, 0, 0)
    for first, second in ((numbers[:-1], numbers[1:]), (numbers[:-60], numbers[60:])):  # place to place, index to index
        assert abs(float(torch.corrcoef(torch.stack((first, second)))[0, 1])) < 0.05


def test_what_is_said_of_a_token_is_of_the_models_own_distribution(ops: Operations) -> None:
    logits = random(2, 40)
    table = logits[1].log_softmax(dim=0)
    works = [work("a"), work("b", answered=(), n=2, logprobs=3, temperature=0.5, seed=1, logit_bias=((0, 9.0),))]
    results, token_logprobs = sampler(ops).choose(works, logits)
    assert sorted(token_logprobs) == [("b", 0), ("b", 1)]
    for index in range(2):
        [entry] = token_logprobs["b", index]
        assert entry.token == results[1][index][0]
        assert entry.logprob == pytest.approx(float(table[entry.token]))
        assert entry.rank == int((table > table[entry.token]).sum()) + 1
        assert [token for token, _ in entry.top] == table.topk(3).indices.tolist()


def test_equals_share_a_rank_and_no_more_is_said_than_there_is() -> None:
    row = torch.tensor([0.4, 0.1, 0.4, 0.1]).log()
    assert [logprobs(row, token, 0).rank for token in range(4)] == [1, 3, 1, 3]
    assert logprobs(row, 1, 0).top == ()
    assert len(logprobs(row, 1, 50).top) == 4


@pytest.mark.parametrize("draft", [(), (4,), (4, 9), (9, 4, 4)])
def test_draft_tokens_are_accepted_while_they_are_drawn(ops: Operations, draft: tuple[int, ...]) -> None:
    """Three rows give 4, 5, 6: the answer has the draft tokens up to the first wrong one, and the token drawn in its place."""
    one = work()
    one.sequence.draft = draft
    logits = torch.nn.functional.one_hot(torch.tensor([4, 5, 6, 7]), 12).float()[: len(draft) + 1]
    [[tokens]], _ = sampler(ops).choose([Work(one.sequence, one.start, 1 + len(draft), len(draft))], logits)
    assert tokens == {(): (4,), (4,): (4, 5), (4, 9): (4, 5), (9, 4, 4): (4,)}[draft]
