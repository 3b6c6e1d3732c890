"""Protects exact greedy answers when the pool of pages is full all the time: sequences are preempted and computed again,
prompts share cached pages or none do, and each answer is the one its prompt gets alone. Row 24 of the reliability table.

PAGEFLEET_PARITY_REQUESTS sets how many requests are served (2,000 in the campaign).
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from support.engine.reference import answers, ask, assert_all_greedy, engine, serve, tiny

REQUESTS = int(os.environ.get("PAGEFLEET_PARITY_REQUESTS", "150"))
PAGES, PAGE_TOKENS, LONGEST_PROMPT, LONGEST_ANSWER = 12, 16, 48, 80
WAITING = 16  # requests that always wait, so that freed pages are taken at once
AT_REFERENCE = 24  # answers that transformers must agree with
Prompt = tuple[int, ...]


def asked(count: int) -> list[tuple[Prompt, int]]:
    """Return prompts with the lengths of their answers. Many begin like others, and each comes about four times."""
    chosen = random.Random(24)
    stems = [[chosen.randrange(3, 300) for _ in range(2 * PAGE_TOKENS)] for _ in range(2)]
    prompts = [
        (
            *chosen.choice([*stems, []]),
            *(chosen.randrange(3, 300) for _ in range(chosen.randrange(1, LONGEST_PROMPT - 2 * PAGE_TOKENS))),
        )
        for _ in range(max(1, count // 4))
    ]
    return [(chosen.choice(prompts), chosen.randrange(1, LONGEST_ANSWER + 1)) for _ in range(count)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("full"))[0]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[Prompt, list[int]]:
    """Return each prompt's answer when nothing else runs. Some of them are compared with transformers."""
    uri, reference = tiny(tmp_path_factory.mktemp("alone"))
    solo = engine(uri, prefix_caching=False, num_pages=PAGES, page_size=PAGE_TOKENS, max_num_seqs=1)
    expected = {prompt: answers(solo, [prompt], LONGEST_ANSWER)[0] for prompt in dict(asked(REQUESTS))}
    assert solo.stats().preemptions == 0
    assert_all_greedy(reference, list(expected.items())[:AT_REFERENCE])
    return expected


@pytest.mark.parametrize("caching", [True, False], ids=["prefix-cache", "no-prefix-cache"])
def test_a_pool_that_is_always_full_changes_no_answer(
    caching: bool, model: str, alone: dict[Prompt, list[int]]
) -> None:
    requests = asked(REQUESTS)
    sizes = {"num_pages": PAGES, "page_size": PAGE_TOKENS, "max_model_len": LONGEST_PROMPT + LONGEST_ANSWER}
    served = engine(model, prefix_caching=caching, max_num_batched_tokens=64, **sizes)
    coming = [ask(str(index), prompt, most) for index, (prompt, most) in enumerate(requests)]
    coming.reverse()
    held: Counter[int] = Counter()

    def more(_: int) -> None:
        stats = served.stats()
        if coming:
            held[PAGES - stats.pages_free - stats.pages_cached] += 1
        for _ in range(min(len(coming), WAITING - stats.waiting)):
            served.add(coming.pop())

    served_answers = serve(served, [coming.pop() for _ in range(WAITING)], more)
    tokens = {int(name): one.tokens for (name, _), one in served_answers.items()}
    wrong = [index for index, (prompt, most) in enumerate(requests) if tokens.get(index) != alone[prompt][:most]]
    assert wrong == []
    stats = served.stats()
    assert stats.preemptions > REQUESTS // 20
    assert held[PAGES] > REQUESTS // 2, "the last page was seldom held"
    assert sum(pages * steps for pages, steps in held.items()) > 0.8 * PAGES * held.total()
    assert (stats.prefix_hits > 0) == caching
    assert stats.pages_free + stats.pages_cached == stats.pages_total
