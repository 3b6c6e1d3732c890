"""Protects the monthly budgets of API keys: all gateway processes agree on the tokens used, whatever the order of messages, however often
they come and whichever process restarts; a spent budget refuses until the month is over; and no message breaks a gateway."""

from __future__ import annotations

import calendar

from hypothesis import given
from hypothesis import strategies as st

from pagefleet_gateway.limits.budgets import Budgets

NOVEMBER = float(calendar.timegm((2026, 11, 30, 23, 0, 0)))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["use", "tell", "tell all", "restart"]),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(0, 500),
    ),
    max_size=60,
)


@given(STEPS)
def test_all_gateways_agree_and_a_restart_loses_nothing_that_was_told(steps: list[tuple[str, int, int, int]]) -> None:
    pods = [Budgets(f"p{number}", lambda: NOVEMBER) for number in range(3)]
    used, restarts = 0, 0
    for kind, place, other, tokens in steps:
        match kind:
            case "use":
                pods[place].add("team", tokens)
                used += tokens
            case "tell":
                news = pods[place].take_changed()
                for pod in pods:  # also to itself, and one of them twice
                    pod.hear(news)
                pods[other].hear(news)
            case "tell all":
                pods[other].hear(pods[place].all())
            case _:
                # Its last news reach the others, and a new process begins with what one of them knows.
                for pod in pods:
                    pod.hear(pods[place].all())
                restarts += 1
                pods[place] = Budgets(f"p{place}-{restarts}", lambda: NOVEMBER)
                if place != other:
                    pods[place].hear(pods[other].all())
    for one in pods:
        for two in pods:
            two.hear(one.all())
    for one in pods:
        for two in pods:
            two.hear(one.all())
    assert [pod.used("team") for pod in pods] == [used] * 3
    assert dict(pods[0].totals()) == ({"team": used} if any(kind == "use" for kind, *_ in steps) else {})


def test_a_spent_budget_refuses_until_the_month_is_over() -> None:
    now = [NOVEMBER]
    budgets = Budgets("a", lambda: now[0])
    budgets.add("team", 999)
    assert budgets.spent("team", 1000) is None and budgets.spent("team", 0) is None
    budgets.add("team", 500)  # a request that was in flight: nothing is charged before
    spent = budgets.spent("team", 1000)
    assert spent is not None and (spent.key, spent.tokens, spent.month, spent.seconds) == (
        "team",
        1000,
        "2026-11",
        3600,
    )
    assert budgets.spent("other", 1000) is None and budgets.spent("team", 0) is None
    now[0] += 3600
    assert budgets.month == "2026-12" and budgets.spent("team", 1000) is None
    now[0] += 31 * 86_400
    assert budgets.month == "2027-01"


def test_a_clock_that_is_ahead_counts_in_its_own_month_and_what_is_over_or_gone_is_forgotten() -> None:
    now = [NOVEMBER]
    ahead, behind = Budgets("a", lambda: now[0] + 4000), Budgets("b", lambda: now[0])
    ahead.add("team", 5)
    behind.add("team", 7)
    behind.add("gone", 1)
    behind.hear(ahead.take_changed())
    ahead.hear(behind.take_changed())
    assert (ahead.used("team"), behind.used("team")) == (5, 7)
    now[0] += 4000
    assert behind.used("team") == 5
    behind.retain({"team"})
    behind.forget_past()
    now[0] -= 4000  # the clock is set back
    assert behind.used("team") == 7 and behind.used("gone") == 0
    now[0] += 36 * 86_400
    behind.forget_past()
    assert behind.all() == {"2026-12": {"a": {"team": 5}}}


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3) | st.just("2026-11"),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.just("2026-11"), inner, max_size=3)
        ),
        max_leaves=12,
    )
)
def test_what_is_malformed_is_left_out(counters: object) -> None:
    budgets = Budgets("a", lambda: NOVEMBER)
    budgets.hear(counters)
    assert all(tokens >= 0 for tokens in budgets.totals().values()) and budgets.take_changed() == {}
