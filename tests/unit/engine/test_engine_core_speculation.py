"""Protects what is guessed from a text, and that guessing goes on only while it pays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pagefleet_engine.core.speculation import NgramIndex, Pace, Standing


def test_what_followed_the_last_occurrence_is_guessed() -> None:
    index = NgramIndex()
    assert index.guess([1, 2, 3, 4], 4) == ()
    assert index.guess([1, 2, 3, 4, 1, 2], 4) == (3, 4, 1, 2)
    assert index.guess([1, 2, 3, 4, 1, 2, 3], 2) == (4, 1)
    # Three tokens count for more than two, and the later occurrence for more than the earlier.
    assert index.guess([1, 2, 3, 4, 1, 2, 3, 9, 2, 3], 1) == (9,)
    assert index.guess([1, 2, 3, 4, 1, 2, 3, 9, 2, 3, 7, 1, 2, 3], 2) == (9, 2)


def test_an_index_that_saw_many_tokens_at_once_is_that_of_one_that_saw_each() -> None:
    text = [(7 * place * place) % 5 for place in range(60)]
    each = NgramIndex()
    for end in range(1, len(text)):
        each.guess(text[:end], 3)
    assert each.guess(text, 3) == NgramIndex().guess(text, 3) != ()


@pytest.mark.parametrize("tokens", [[], [1], [1, 1], [1, 1, 1]])
def test_short_texts_are_no_error(tokens: list[int]) -> None:
    assert len(NgramIndex().guess(tokens, 4)) <= 1


def run(pace: Pace, answers: int, cost: Callable[[int], float], chance: float, steps: int = 400) -> list[int]:
    """Steps that cost what `cost` says of their number of tokens: how many guesses each made."""
    made = []
    for _ in range(steps):
        counts = pace.guesses(answers, [(chance, 4)] * answers)
        assert len(counts) == answers and max(counts) - min(counts) <= 1, "who guesses alike guesses as much"
        made.append(sum(counts))
        tokens = answers + sum(counts)
        pace.took(answers, tokens, cost(tokens))
    return made


def memory_bound(tokens: int) -> float:
    """One weight pass for however few tokens, which compute passes at 32."""
    return max(0.030, 0.001 * tokens)


def linear(tokens: int) -> float:
    return 0.002 + 0.001 * tokens


def test_guesses_are_made_while_they_are_right_and_cost_nothing() -> None:
    made = run(Pace(4), 1, memory_bound, 0.9)
    assert made[0] == 0, "it does not know yet what a step without guesses costs"
    assert set(made[50:]) == {4}
    assert set(run(Pace(2), 1, memory_bound, 0.9)[50:]) == {2}


def test_wrong_guesses_switch_it_off_but_for_a_try_now_and_then() -> None:
    made = run(Pace(4), 1, linear, 0.05, steps=1000)
    tries = [place for place, count in enumerate(made) if count and place > 50]
    assert 5 <= len(tries) <= 1000 // Pace.TRY_AGAIN
    assert all(made[place] == 1 for place in tries)


def test_a_large_batch_switches_it_off_and_a_small_one_on_again() -> None:
    pace = Pace(4)
    assert set(run(pace, 1, memory_bound, 0.7)[50:]) == {4}
    crowded = run(pace, 40, memory_bound, 0.7)
    assert sum(map(bool, crowded[50:])) < 10
    assert set(run(pace, 1, memory_bound, 0.7)[50:]) == {4}


def test_it_comes_on_again_when_the_text_becomes_easy() -> None:
    pace = Pace(4)
    assert sum(map(bool, run(pace, 1, linear, 0.02)[-200:])) < 10
    assert set(run(pace, 1, linear, 0.95)[-100:]) == {4}


def test_those_whose_guesses_stand_get_them() -> None:
    pace = Pace(4)
    run(pace, 8, linear, 0.9)
    chances = [(0.05, 4), (0.97, 4), (0.3, 4), (0.97, 2), (0.0, 4), (0.05, 4), (0.05, 4), (0.05, 4)]
    assert pace.guesses(8, chances) == [0, 4, 0, 2, 0, 0, 0, 0]
    # A step that waits for memory anyway has room for those that may stand too.
    pace = Pace(4)
    run(pace, 8, memory_bound, 0.9)
    assert pace.guesses(8, chances)[1:4] == [4, 2, 2]


@pytest.mark.parametrize("answers", [3, 8, 20])
def test_no_other_choice_brings_more_tokens_a_second(answers: int) -> None:
    """Against every choice of how many guesses of the likeliest are made."""
    pace, chances = Pace(3), [(((7 * place) % 10) / 10, 3) for place in range(answers)]
    for count in (0, 1, 2, 3):
        tokens = answers * (1 + count)
        for _ in range(200):
            pace.took(answers, tokens, linear(tokens))
    counts = pace.guesses(answers, chances)

    def rate(chosen: list[int]) -> float:
        pairs = zip(chances, chosen, strict=True)
        gained = sum(sum(chance**place for place in range(1, count + 1)) for (chance, _), count in pairs)
        return (answers + gained) / linear(answers + sum(chosen))

    for bound in {chance**place for chance, _ in chances for place in (1, 2, 3)} | {1.1}:
        assert rate(counts) >= 0.97 * rate(
            [sum(chance**place >= bound for place in (1, 2, 3)) for chance, _ in chances]
        )


def test_what_contexts_cost_is_not_laid_to_guesses() -> None:
    """Steps of as many tokens, some of many answers and some of few with guesses: the latter are cheaper."""
    pace = Pace(4)

    def took(answers: int, tokens: int) -> None:
        pace.took(answers, tokens, 0.005 * answers + 0.0001 * tokens)

    for _ in range(100):
        for answers in (4, 20):
            for count in range(5):
                took(answers, answers * (1 + count))
    assert pace.guesses(4, [(0.5, 4)] * 4) == [4] * 4


def test_nothing_is_guessed_for_nobody() -> None:
    assert Pace(4).guesses(0, []) == []


def test_what_stood_is_known_of_each_answer_and_kind() -> None:
    standing = Standing()
    assert standing.chance("a", 2) == Standing.HOPE
    for _ in range(30):
        standing.learn("a", 2, 4, 0)
        standing.learn("a", 3, 4, 4)
        standing.learn("b", 2, 4, 4)
    assert standing.chance("a", 2) < 0.01 < 0.99 < standing.chance("a", 3)
    assert standing.chance("b", 2) > 0.99
    assert standing.chance("c", 3) > 0.95, "what is known of all is where a new one begins"
    assert 0.3 < standing.chance("c", 2) < 0.95
    standing.forget("a")
    assert standing.chance("a", 2) == standing.chance("c", 2)


def test_of_guesses_after_a_wrong_one_nothing_is_learnt() -> None:
    one, many = Standing(), Standing()
    one.learn("a", 0, 1, 0)
    many.learn("a", 0, 8, 0)
    assert one.chance("a", 0) == many.chance("a", 0)
    chances = []
    for right in (0, 1, 3, 7):
        standing = Standing()
        standing.learn("a", 0, 8, right)
        chances.append(standing.chance("a", 0))
    assert chances == sorted(chances)


def test_an_answer_that_is_not_guessed_becomes_like_the_others() -> None:
    standing = Standing()
    for _ in range(50):
        standing.learn("a", 2, 4, 0)
        for other in ("b", "c", "d"):
            standing.learn(other, 2, 4, 4)
    low, every = standing.chance("a", 2), standing.chance("new", 2)
    for _ in range(400):
        standing.fade("a", 2)
    assert low < 0.01 and standing.chance("a", 2) == pytest.approx(every, abs=0.01)
    standing.fade("unknown", 2)
    assert standing.chance("unknown", 2) == every
