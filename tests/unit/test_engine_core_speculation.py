"""Protects what is guessed from a text, and that guessing goes on only while it pays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pagefleet_engine.core.speculation import NgramIndex, Pace


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


def run(pace: Pace, sequences: int, cost: Callable[[int], float], acceptance: float, steps: int = 400) -> list[int]:
    """Steps of single tokens that cost what `cost` says of their number: how many guesses each made."""
    made, owed = [], 0.0
    for _ in range(steps):
        count = pace.guesses(sequences)
        made.append(count)
        tokens = sequences * (1 + count)
        pace.took(tokens, cost(tokens))
        if count:
            owed += sequences * sum(acceptance ** (place + 1) for place in range(count))
            right = min(sequences * count, int(owed))
            owed -= right
            pace.outcomes(sequences * count, right)
    return made


def memory_bound(tokens: int) -> float:
    """One weight pass for however few tokens, which compute passes at 32."""
    return max(0.030, 0.001 * tokens)


def test_guesses_are_made_while_they_are_right_and_cost_nothing() -> None:
    made = run(Pace(4), 1, memory_bound, acceptance=0.9)
    assert made[0] == 0, "it does not know yet what a step without guesses costs"
    assert set(made[50:]) == {4}


def test_wrong_guesses_switch_it_off_but_for_a_try_now_and_then() -> None:
    made = run(Pace(4), 1, lambda tokens: 0.01 * tokens, acceptance=0.05, steps=1000)
    tries = [place for place, count in enumerate(made) if count and place > 50]
    assert 5 <= len(tries) <= 1000 // Pace.TRY_AGAIN
    assert all(made[place] == 1 for place in tries)


def test_a_large_batch_switches_it_off_and_a_small_one_on_again() -> None:
    pace = Pace(4)
    assert set(run(pace, 1, memory_bound, acceptance=0.7)[50:]) == {4}
    crowded = run(pace, 40, memory_bound, acceptance=0.7)
    assert sum(map(bool, crowded[50:])) < 10
    assert set(run(pace, 1, memory_bound, acceptance=0.7)[50:]) == {4}


def test_it_comes_on_again_when_the_text_becomes_easy() -> None:
    pace = Pace(4)

    def cost(tokens: int) -> float:
        return 0.02 + 0.003 * tokens

    hard = run(pace, 1, cost, acceptance=0.02)
    assert sum(map(bool, hard[-200:])) < 10
    easy = run(pace, 1, cost, acceptance=0.95, steps=3000)
    assert set(easy[-100:]) <= {3, 4}


def test_nothing_is_guessed_for_nobody() -> None:
    assert Pace(4).guesses(0) == 0
