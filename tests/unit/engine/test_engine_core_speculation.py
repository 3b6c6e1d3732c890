"""Protects which tokens are drafted from a text, and that drafting goes on only while it pays."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pagefleet_engine.core.speculation import AcceptanceRates, DraftPlanner, NgramIndex


def test_the_tokens_after_the_last_occurrence_are_drafted() -> None:
    index = NgramIndex()
    assert index.draft([1, 2, 3, 4], 4) == ()
    assert index.draft([1, 2, 3, 4, 1, 2], 4) == (3, 4, 1, 2)
    assert index.draft([1, 2, 3, 4, 1, 2, 3], 2) == (4, 1)
    # Three tokens count for more than two, and the later occurrence for more than the earlier.
    assert index.draft([1, 2, 3, 4, 1, 2, 3, 9, 2, 3], 1) == (9,)
    assert index.draft([1, 2, 3, 4, 1, 2, 3, 9, 2, 3, 7, 1, 2, 3], 2) == (9, 2)


def test_an_index_of_many_tokens_at_once_equals_one_of_each_in_turn() -> None:
    text = [(7 * place * place) % 5 for place in range(60)]
    each = NgramIndex()
    for end in range(1, len(text)):
        each.draft(text[:end], 3)
    assert each.draft(text, 3) == NgramIndex().draft(text, 3) != ()


@pytest.mark.parametrize("tokens", [[], [1], [1, 1], [1, 1, 1]])
def test_short_texts_are_no_error(tokens: list[int]) -> None:
    assert len(NgramIndex().draft(tokens, 4)) <= 1


def run(
    planner: DraftPlanner, answers: int, cost: Callable[[int], float], chance: float, steps: int = 400
) -> list[int]:
    """Run some steps, whose seconds are `cost` of their number of tokens. Return the number of draft tokens of each."""
    made = []
    for _ in range(steps):
        counts = planner.plan(answers, [(chance, 4)] * answers)
        assert len(counts) == answers and max(counts) - min(counts) <= 1, "equal answers have equally many draft tokens"
        made.append(sum(counts))
        tokens = answers + sum(counts)
        planner.observe(answers, tokens, cost(tokens))
    return made


def usual(made: list[int]) -> int:
    """Return the number of draft tokens of every step but one in DraftPlanner.TRY_AGAIN, which has none."""
    assert made.count(0) <= 1 + len(made) // DraftPlanner.TRY_AGAIN
    (many,) = {count for count in made if count}
    return many


def memory_bound(tokens: int) -> float:
    """Return the seconds of a step: one pass over the weights, or the computation when it takes longer (from 32 tokens)."""
    return max(0.030, 0.001 * tokens)


def linear(tokens: int) -> float:
    return 0.002 + 0.001 * tokens


def test_drafts_are_made_while_they_are_accepted_and_cost_nothing() -> None:
    made = run(DraftPlanner(4), 1, memory_bound, 0.9)
    assert made[0] == 0, "the cost of a step without drafts is not known yet"
    assert usual(made[50:]) == 4
    assert usual(run(DraftPlanner(2), 1, memory_bound, 0.9)[50:]) == 2


def test_rejected_drafts_switch_it_off_but_for_a_try_now_and_then() -> None:
    made = run(DraftPlanner(4), 1, linear, 0.05, steps=1000)
    tries = [place for place, count in enumerate(made) if count and place > 50]
    assert 5 <= len(tries) <= 1000 // DraftPlanner.TRY_AGAIN
    assert all(made[place] == 1 for place in tries)


def test_a_large_batch_switches_it_off_and_a_small_one_on_again() -> None:
    planner = DraftPlanner(4)
    assert usual(run(planner, 1, memory_bound, 0.7)[50:]) == 4
    crowded = run(planner, 40, memory_bound, 0.7)
    assert sum(map(bool, crowded[50:])) < 10
    assert usual(run(planner, 1, memory_bound, 0.7)[50:]) == 4


def test_it_comes_on_again_when_the_text_becomes_easy() -> None:
    planner = DraftPlanner(4)
    assert sum(map(bool, run(planner, 1, linear, 0.02)[-200:])) < 10
    assert usual(run(planner, 1, linear, 0.95)[-200:]) == 4


def test_the_answers_whose_drafts_are_accepted_get_them() -> None:
    planner = DraftPlanner(4)
    run(planner, 8, linear, 0.9)
    chances = [(0.05, 4), (0.97, 4), (0.3, 4), (0.97, 2), (0.0, 4), (0.05, 4), (0.05, 4), (0.05, 4)]
    assert planner.plan(8, chances) == [0, 4, 0, 2, 0, 0, 0, 0]
    # A step that waits for memory anyway has room for those that may be accepted too.
    planner = DraftPlanner(4)
    run(planner, 8, memory_bound, 0.9)
    assert planner.plan(8, chances)[1:4] == [4, 2, 2]


@pytest.mark.parametrize("answers", [3, 8, 20])
def test_no_other_choice_brings_more_tokens_a_second(answers: int) -> None:
    """Against every number of the likeliest draft tokens."""
    planner, chances = DraftPlanner(3), [(((7 * place) % 10) / 10, 3) for place in range(answers)]
    for count in (0, 1, 2, 3):
        tokens = answers * (1 + count)
        for _ in range(200):
            planner.observe(answers, tokens, linear(tokens))
    counts = planner.plan(answers, chances)

    def rate(chosen: list[int]) -> float:
        pairs = zip(chances, chosen, strict=True)
        gained = sum(sum(chance**place for place in range(1, count + 1)) for (chance, _), count in pairs)
        return (answers + gained) / linear(answers + sum(chosen))

    for bound in {chance**place for chance, _ in chances for place in (1, 2, 3)} | {1.1}:
        assert rate(counts) >= 0.97 * rate(
            [sum(chance**place >= bound for place in (1, 2, 3)) for chance, _ in chances]
        )


def test_the_cost_of_contexts_is_not_laid_to_drafts() -> None:
    """Steps of as many tokens, some of many answers and some of few with drafts: the latter are cheaper."""
    planner = DraftPlanner(4)

    def observe(answers: int, tokens: int) -> None:
        planner.observe(answers, tokens, 0.005 * answers + 0.0001 * tokens)

    for _ in range(100):
        for answers in (4, 20):
            for tokens in range(answers, 5 * answers + 1):
                observe(answers, tokens)
    assert planner.plan(4, [(0.5, 4)] * 4) == [4] * 4


def test_the_number_of_answers_may_change_within_a_power_of_two() -> None:
    """Fewer answers make a step faster. That is not laid to draft tokens, which cost more here than they gain."""
    planner, generator, made = DraftPlanner(4), random.Random(1), []
    for _ in range(1000):
        answers = max(33, min(63, round(generator.gauss(46, 8))))
        counts = planner.plan(answers, [(0.3, 4)] * (answers // 2))
        made.append(sum(counts) / answers)
        tokens = answers + sum(counts)
        planner.observe(answers, tokens, 0.004 + 0.00035 * tokens)
    assert sum(made[100:]) < 0.05 * len(made[100:])


def test_drafts_end_when_a_step_without_them_became_cheap() -> None:
    """While drafts pay, nearly all steps have some: what the few others take counts at once."""
    planner = DraftPlanner(4)
    assert usual(run(planner, 8, lambda tokens: 0.03 + 0.001 * tokens, 0.3)[50:]) == 8
    made = run(planner, 8, lambda tokens: 0.002 + 0.001 * tokens, 0.3, steps=600)
    assert sum(map(bool, made[300:])) < 8


def test_without_answers_there_are_no_drafts() -> None:
    assert DraftPlanner(4).plan(0, []) == []


def test_rates_are_of_each_answer_and_kind() -> None:
    rates = AcceptanceRates()
    assert rates.rate("a", 2) == AcceptanceRates.PRIOR
    for _ in range(30):
        rates.observe("a", 2, 4, 0)
        rates.observe("a", 3, 4, 4)
        rates.observe("b", 2, 4, 4)
    assert rates.rate("a", 2) < 0.01 < 0.99 < rates.rate("a", 3)
    assert rates.rate("b", 2) > 0.99
    assert rates.rate("c", 3) > 0.95, "a new answer begins with the average over all"
    assert 0.3 < rates.rate("c", 2) < 0.95
    rates.forget("a")
    assert rates.rate("a", 2) == rates.rate("c", 2)


def test_draft_tokens_after_a_rejected_one_teach_nothing() -> None:
    one, many = AcceptanceRates(), AcceptanceRates()
    one.observe("a", 0, 1, 0)
    many.observe("a", 0, 8, 0)
    assert one.rate("a", 0) == many.rate("a", 0)
    chances = []
    for accepted in (0, 1, 3, 7):
        rates = AcceptanceRates()
        rates.observe("a", 0, 8, accepted)
        chances.append(rates.rate("a", 0))
    assert chances == sorted(chances)


def test_an_answer_without_drafts_becomes_like_the_others() -> None:
    rates = AcceptanceRates()
    for _ in range(50):
        rates.observe("a", 2, 4, 0)
        for other in ("b", "c", "d"):
            rates.observe(other, 2, 4, 4)
    low, every = rates.rate("a", 2), rates.rate("new", 2)
    for _ in range(400):
        rates.fade("a", 2)
    assert low < 0.01 and rates.rate("a", 2) == pytest.approx(every, abs=0.01)
    rates.fade("unknown", 2)
    assert rates.rate("unknown", 2) == every
