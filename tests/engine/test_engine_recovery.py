"""Protects the engine and the requests beside one that makes a step raise: that one ends with an error, the others have
the answers that they have without it, and no page is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engine.drafts import Always
from support.engine.heads import random_head, served
from support.engine.reference import KERNELS, Served, ask, engine, serve, tiny

from pagefleet_engine.core.requests import EngineRequest, Speculation
from pagefleet_engine.core.sequence import TokenSequence
from pagefleet_engine.core.work import Work
from pagefleet_engine.runner.cpu.engine import Engine
from pagefleet_kernels.cpu import Batch

CULPRIT, POISON = "culprit", (298, 299)  # a request, and tokens that its prompt begins with
VOCABULARY = 300
Fault = Callable[[Engine, pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("recovery"))[0]


@pytest.fixture(params=KERNELS)
def made(model: str, request: pytest.FixtureRequest) -> Engine:
    return engine(model, kernels=request.param, max_num_batched_tokens=64)


def beside() -> list[EngineRequest]:
    """Return one request of each kind. Steps carry different state from one to the next for each."""
    prompts = [[3 + 7 * one + place % 9 for place in range(9 + 11 * one)] for one in range(7)]
    return [
        ask("greedy", prompts[0], 12),
        ask("seeded", prompts[1], 12, temperature=0.9, seed=3),
        ask("scored", prompts[2], 12, logprobs=2),
        ask("prompt", prompts[6], 9, prompt_logprobs=1),
        ask("several", prompts[3], 9, n=3, temperature=1.0, seed=4),
        ask("penalised", prompts[4], 12, repetition_penalty=1.3, frequency_penalty=0.5),
        EngineRequest("embedded", tuple(prompts[5]), ask("", [3], 1).sampling, 0.0, embed=True),
    ]


def culprit(**sampling: Any) -> EngineRequest:
    return ask(CULPRIT, [*POISON, *range(10, 60)], 12, **sampling)


def raised(*_: Any) -> Any:
    raise RuntimeError("as asked for")


def in_forward(made: Engine, patch: pytest.MonkeyPatch) -> None:
    """Raise whenever the tokens of the culprit's prompt are computed."""
    loaded, real = made.loaded.model, made.loaded.model.forward

    def forward(tokens: torch.Tensor, *rest: Any) -> torch.Tensor:
        pairs = zip(tokens.tolist(), tokens[1:].tolist(), strict=False)
        return raised() if POISON in pairs else real(tokens, *rest)

    patch.setattr(loaded, "forward", forward)


def in_sampling(made: Engine, patch: pytest.MonkeyPatch) -> None:
    """Raise after some tokens of the culprit, at the choice of the next."""
    real = made._sampler.adjust

    def adjust(row: torch.Tensor, answer: TokenSequence) -> None:
        if answer.request_id == CULPRIT and answer.generated == 4:
            raised()
        real(row, answer)

    patch.setattr(made._sampler, "adjust", adjust)


def in_prompt_logprobs(made: Engine, patch: pytest.MonkeyPatch) -> None:
    real = made._prompts._follow

    def follow(work: Work, rows: torch.Tensor, most: int) -> Any:
        return raised() if work.sequence.request_id == CULPRIT else real(work, rows, most)

    patch.setattr(made._prompts, "_follow", follow)


def wrong_token(token: int) -> Fault:
    """Let the operations choose a token that the vocabulary does not have."""

    def fault(made: Engine, patch: pytest.MonkeyPatch) -> None:
        real = made._sampler.choose

        def choose(work_items: Sequence[Work], logits: torch.Tensor) -> Any:
            results, token_logprobs = real(work_items, logits)
            return [
                ((token,),) if work.sequence.request_id == CULPRIT and work.sequence.generated == 3 else result
                for work, result in zip(work_items, results, strict=True)
            ], token_logprobs

        patch.setattr(made._sampler, "choose", choose)

    return fault


def agree(answers: dict[tuple[str, int], Served], expected: dict[tuple[str, int], Served]) -> None:
    assert answers.keys() == expected.keys()
    for key, one in expected.items():
        assert (answers[key].tokens, answers[key].finish) == (one.tokens, one.finish), key
        assert [entry.logprob for entry in answers[key].logprobs] == pytest.approx(
            [e.logprob for e in one.logprobs], abs=1e-4
        )
        assert answers[key].embedding == pytest.approx(one.embedding, abs=1e-4)
        theirs = [entry.logprob for entry in answers[key].prompt_logprobs or ()]
        assert theirs == pytest.approx([entry.logprob for entry in one.prompt_logprobs or ()], abs=1e-4)


@pytest.mark.parametrize(
    ("fault", "sampling", "tokens"),
    [
        (in_forward, {}, 0),
        (in_forward, {"n": 4, "temperature": 1.0}, 0),
        (in_sampling, {"logit_bias": ((7, 2.0),)}, 4),
        (in_prompt_logprobs, {"prompt_logprobs": 2}, 0),
        (wrong_token(-1), {}, 3),
        (wrong_token(VOCABULARY), {}, 3),
    ],
    ids=["forward", "forward of several answers", "sampling", "prompt logprobs", "token -1", "token too large"],
)
def test_a_request_that_makes_steps_raise_ends_alone(
    made: Engine, monkeypatch: pytest.MonkeyPatch, fault: Fault, sampling: dict[str, Any], tokens: int
) -> None:
    expected = serve(made, beside())
    fault(made, monkeypatch)
    answers = serve(made, [*beside()[:3], culprit(**sampling), *beside()[3:]])
    ended = {key: answers.pop(key) for key in list(answers) if key[0] == CULPRIT}
    assert [index for _, index in ended] == list(range(sampling.get("n", 1)))
    assert {(one.finish, len(one.tokens)) for one in ended.values()} == {("error", tokens)}
    agree(answers, expected)
    assert made.stats().pages_free + made.stats().pages_cached == made.stats().pages_total
    monkeypatch.undo()
    agree(serve(made, beside()), expected)


def test_two_that_raise_are_both_found(made: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = serve(made, beside())
    in_forward(made, monkeypatch)
    second = EngineRequest("second", (9, *POISON), culprit().sampling, 0.0)
    answers = serve(made, [culprit(), *beside(), second])
    assert {answers.pop((name, 0)).finish for name in (CULPRIT, "second")} == {"error"}
    agree(answers, expected)


def test_a_batch_that_raises_only_as_a_whole_ends_nobody(made: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that does not suffice, for one."""
    expected = serve(made, beside())
    loaded, real, counted = made.loaded.model, made.loaded.model.forward, []

    def forward(tokens: torch.Tensor, batch: Batch, *rest: Any) -> torch.Tensor:
        counted.append(len(batch.context))
        return raised() if len(batch.context) > 2 else real(tokens, batch, *rest)

    monkeypatch.setattr(loaded, "forward", forward)
    agree(serve(made, beside()), expected)
    assert max(counted) > 4, "no step was large enough"


@pytest.mark.parametrize("method", ["draft", "eagle3"])
def test_draft_tokens_change_nothing_of_it(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri, model = served(tmp_path / "model")
    folder = tmp_path / "draft"
    draft = random_head(model).save(folder) if method == "eagle3" else tiny(folder, seed=1)[0]
    made = engine(uri, speculation=Speculation(method, 4, draft), max_num_batched_tokens=64)
    assert made._speculator is not None
    made._speculator.planner = Always(4)
    expected = serve(made, beside())
    in_forward(made, monkeypatch)
    answers = serve(made, [*beside()[:3], culprit(), *beside()[3:]])
    assert answers.pop((CULPRIT, 0)).finish == "error"
    agree(answers, expected)
    assert made.stats().draft_tokens > 0
    monkeypatch.undo()
    for name, others in (("fill", {CULPRIT}), ("plan", set())):
        speculator = made._speculator
        real = getattr(speculator, name)

        def fails(given: Any, name: str = name, real: Any = real) -> None:
            if name == "plan" or any(work.sequence.request_id == CULPRIT for work in given):
                raised()
            real(given)

        monkeypatch.setattr(speculator, name, fails)
        answers = serve(made, [culprit(), *beside()])
        assert {key[0] for key, one in answers.items() if one.finish == "error"} == others, name
        del answers[CULPRIT, 0]
        agree(answers, expected)
        monkeypatch.undo()


@pytest.mark.parametrize("place", ["expire", "schedule", "_append", "_remove"])
def test_a_fault_of_nobody_ends_what_had_begun_and_no_more(
    model: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The state of what had begun cannot be trusted; what waits has none yet. Each client gets one error."""
    made = engine(model, max_num_seqs=3, max_num_batched_tokens=64)
    expected = serve(made, beside())
    steps = 0

    def between(step: int) -> None:
        nonlocal steps
        steps = step
        if step == 3:
            scheduler, real = made._scheduler, getattr(made._scheduler, place)

            def once(*arguments: Any) -> Any:
                monkeypatch.undo()
                if place == "_remove":
                    real(*arguments)  # its last output is lost
                raised()

            monkeypatch.setattr(scheduler, place, once)

    answers = serve(made, beside(), between)
    failed = {name for (name, _), one in answers.items() if one.finish == "error"}
    assert failed and failed < {request.request_id for request in beside()}
    agree(
        {key: one for key, one in answers.items() if key[0] not in failed},
        {key: one for key, one in expected.items() if key[0] not in failed},
    )
    assert answers.keys() == expected.keys(), "a request got no end"
    assert steps > 5
    assert made.stats().pages_free + made.stats().pages_cached == made.stats().pages_total
