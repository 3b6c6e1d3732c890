"""Protects that drafts change no answer: greedy, seeded, and in distribution; whatever drafts them, and whatever happens
around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.engine.drafts import FEW_TOKENS, Always, Switched, assert_distributed, mixed, prompts
from support.engine.reference import KERNELS, ask, assert_all_greedy, engine, serve, tiny

from pagefleet_engine.core.limits import Limits
from pagefleet_engine.core.requests import Batching, EngineRequest, SamplingParams, Speculation
from pagefleet_engine.core.scheduler import Scheduler
from pagefleet_engine.core.work import Work
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.runner.common.speculator import DraftModel
from pagefleet_engine.runner.cpu.engine import Engine


def drafting(model: str, method: str, draft: str | None = None, **changes: Any) -> Engine:
    made = engine(model, speculation=Speculation(method, 4, draft), **changes)
    assert made._speculator is not None
    made._speculator.planner = Always(4)
    return made


@pytest.mark.parametrize("method", ["ngram", "draft", "itself"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_num_batched_tokens": 24, "max_chunk_tokens": 8},
        {"num_pages": 14, "max_model_len": 128},
        {"quantization": "int8", "prefix_caching": False},
    ],
    ids=["roomy", "chunks", "preemption", "int8"],
)
def test_answers_are_those_without_drafts(method: str, changes: dict[str, Any], tmp_path: Path) -> None:
    uri, model = tiny(tmp_path / "model", initializer_range=0.05)
    draft = uri
    if method == "draft":  # often right, and often wrong
        model.model.layers[1].mlp.down_proj.weight.data *= 0.3
        model.save_pretrained(tmp_path / "draft")
        draft = f"file://{tmp_path / 'draft'}"
    plain = engine(uri, **changes)
    drafted = drafting(uri, "ngram" if method == "ngram" else "draft", None if method == "ngram" else draft, **changes)
    for _ in range(2):  # the second time from the prefix cache
        assert serve(drafted, mixed(n=4)) == serve(plain, mixed(n=4))
    stats = drafted.stats()
    assert stats.draft_tokens > (10 if "num_pages" in changes else 40)
    assert plain.stats().draft_tokens == 0
    if method == "itself":
        assert stats.accepted_tokens == stats.draft_tokens
    else:
        assert 0 < stats.accepted_tokens < stats.draft_tokens
    if "num_pages" in changes:
        assert stats.preemptions > 0


@pytest.mark.parametrize("changes", [{}, {"max_num_batched_tokens": 24, "max_chunk_tokens": 8}], ids=["", "chunks"])
def test_a_draft_model_rests_while_drafting_is_off_and_makes_up_for_it(changes: dict[str, Any], tmp_path: Path) -> None:
    """Copied pages, pages from the prefix cache and pages that had another content before are among its own."""
    uri, _ = tiny(tmp_path, initializer_range=0.05)
    served, plain = drafting(uri, "draft", uri, num_pages=40, **changes), engine(uri, **changes)
    assert served._speculator is not None
    served._speculator.planner = planner = Switched(4)
    asked = [request for request in mixed(n=3) if request.sampling.plain]
    expected = serve(plain, asked)
    assert serve(served, asked) == expected
    assert not any(pages.keys.any() for pages in served.loaded.draft_cache), "it has computed something"

    def switch(step: int) -> None:
        planner.on = step % 14 > 8

    for _ in range(2):
        assert serve(served, asked, switch) == expected
    stats = served.stats()
    assert stats.prefix_hits > 0
    assert stats.draft_tokens == stats.accepted_tokens > 40


@pytest.mark.parametrize("kernels", KERNELS)
def test_drafted_greedy_answers_are_transformers(kernels: str, tmp_path: Path) -> None:
    uri, reference = tiny(tmp_path, initializer_range=0.1)
    served = drafting(uri, "ngram", kernels=kernels)
    answers = serve(served, [ask(str(index), prompt, 30) for index, prompt in enumerate(prompts(8))])
    assert_all_greedy(reference, [(prompt, answers[str(index), 0].tokens) for index, prompt in enumerate(prompts(8))])
    assert served.stats().accepted_tokens > 20


def test_end_of_text_within_accepted_drafts_ends_the_answer(tmp_path: Path) -> None:
    uri, _ = tiny(tmp_path)
    plain, drafted = engine(uri), drafting(uri, "draft", uri)
    whole = serve(plain, [ask("a", prompts(1)[0], 20)])["a", 0].tokens
    last = next(token for token in whole[3:] if token not in whole[:3])
    most = whole.index(last) + 1
    answers = serve(drafted, [ask("a", prompts(1)[0], 20, stop_token_ids=(last,)), ask("b", prompts(1)[0], most + 1)])
    assert (answers["a", 0].tokens, answers["a", 0].finish) == (whole[:most], "stop")
    assert (answers["b", 0].tokens, answers["b", 0].finish) == (whole[: most + 1], "length")


@pytest.mark.parametrize(
    "sampling", [{"logprobs": 0}, {"presence_penalty": 0.1}, {"min_tokens": 2}, {"logit_bias": ((4, -1.0),)}]
)
def test_a_choice_that_depends_on_more_than_logits_has_no_drafts(sampling: dict[str, Any], tmp_path: Path) -> None:
    uri, _ = tiny(tmp_path)
    served = drafting(uri, "draft", uri)
    serve(served, [ask("a", prompts(1)[0], 20, **sampling)])
    assert served.stats().draft_tokens == 0


@pytest.mark.parametrize("method", ["ngram", "draft", "itself"])
def test_unseeded_draws_follow_the_models_distribution(method: str, tmp_path: Path) -> None:
    uri, reference = tiny(tmp_path / "model", **FEW_TOKENS)
    draft = uri if method == "itself" else tiny(tmp_path / "draft", 9, **FEW_TOKENS)[0]
    served = drafting(uri, "ngram" if method == "ngram" else "draft", None if method == "ngram" else draft)

    def draw(name: str, prompt: list[int]) -> list[list[int]]:
        return [
            one.tokens for one in serve(served, [ask(f"{method}{name}", prompt, 3, n=64, temperature=1.3)]).values()
        ]

    assert_distributed(draw, reference)
    assert served.stats().draft_tokens > 1000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 310}, "310 tokens, the served one 300"),
        ({"max_position_embeddings": 128}, "length is 128, less than the served 256"),
        ({"head_dim": 24}, "head_dim is 24"),
    ],
)
def test_a_draft_model_that_does_not_fit_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    uri, _ = tiny(tmp_path / "model")
    with pytest.raises(ModelError, match=message) as raised:
        drafting(uri, "draft", tiny(tmp_path / "draft", **changes)[0])
    assert raised.value.field == "spec.model.speculation.model"


class Counted(list[int]):
    """A list that counts how many of its items were read one by one."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += isinstance(index, int)
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[int]:
        for item in super().__iter__():
            self.reads += 1
            yield item


class Nothing:
    """A smaller model that computes nothing."""

    def forward(self, work_items: list[Work]) -> None:
        self.last = work_items

    def draft(self, places: Sequence[list[Work]]) -> Iterator[list[int]]:
        yield from ([0] * len(step) for step in places)


def test_a_step_s_draft_tokens_cost_the_same_however_long_the_text_is() -> None:
    drafter, size = Nothing(), 16
    speculator = DraftModel(Speculation("draft", 4, "file:///m"), drafter, size, 1 << 20)
    speculator.planner = Always(4)
    limits = Limits(
        pages=2000, page_size=size, max_num_seqs=2, max_num_batched_tokens=32_000, max_model_len=32_000, vocab_size=99,
        eos_token_ids=frozenset(), batching=Batching.CONTINUOUS,
    )  # fmt: skip
    scheduler = Scheduler(limits)
    scheduler.add(EngineRequest("r", (7,) * 31_000, SamplingParams(max_tokens=500), 0.0))
    reads = []
    for step in range(40):
        speculator.plan(scheduler)
        work_items = scheduler.schedule(0.0)
        speculator.fill(work_items)
        scheduler.commit(work_items, [((step,),) for _ in work_items])
        (sequence,) = scheduler.running
        if step == 0:
            sequence.pages = Counted(sequence.pages)
        reads.append(sequence.pages.reads)
    assert drafter.last[0].start > 31_000
    assert reads[-1] - reads[5] < 500
