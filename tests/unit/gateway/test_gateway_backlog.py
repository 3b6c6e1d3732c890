"""Protects the estimate of a pod's uncomputed prompts: nothing before a pace is known, never below zero, its own pace."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagefleet_gateway.cluster.state import Pod
from pagefleet_gateway.picking.backlog import LEAST_TOKENS, Backlogs

ONE, TWO = (Pod(uid, uid, "team", "chat", "a", f"{uid}:8000") for uid in ("one", "two"))
OTHER = Pod("other", "other", "team", "chat", "b", "other:8000")


def test_prompts_are_worked_off_at_the_pace_of_the_revision() -> None:
    backlogs = Backlogs()
    backlogs.sent(ONE, 1000, now=10.0)
    assert backlogs.waiting(ONE, 10.0) == 0  # no answer has shown how fast it is
    backlogs.measured(TWO, 1000, 0.5)  # 2,000 tokens a second; its sibling shares that
    backlogs.sent(ONE, 1000, now=20.0)
    assert backlogs.waiting(ONE, 20.0) == 1000 and backlogs.waiting(ONE, 20.25) == 500
    backlogs.sent(ONE, 300, now=20.25)
    assert backlogs.waiting(ONE, 20.25) == 800 and backlogs.waiting(ONE, 30.0) == 0
    backlogs.sent(OTHER, 1000, now=20.0)
    assert backlogs.waiting(OTHER, 20.0) == 0
    backlogs.keep([TWO])
    backlogs.sent(ONE, 1000, now=40.0)
    assert backlogs.waiting(ONE, 40.0) == 1000


def test_short_prompts_and_nonsense_say_nothing_of_the_pace() -> None:
    backlogs = Backlogs()
    for tokens, seconds in ((LEAST_TOKENS - 1, 0.1), (1000, 0.0), (1000, -1.0)):
        backlogs.measured(ONE, tokens, seconds)
    backlogs.sent(ONE, 1000, now=1.0)
    assert backlogs.waiting(ONE, 1.0) == 0


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=60))
def test_the_pace_stays_between_the_slowest_and_the_quickest_answer(answers: list[float]) -> None:
    backlogs = Backlogs()
    for seconds in answers:
        backlogs.measured(ONE, 1000, seconds)
    backlogs.sent(ONE, 1e9, now=0.0)
    worked = 1e9 - backlogs.waiting(ONE, 1.0)
    paces = [1000 / seconds for seconds in answers]
    assert min(paces) * 0.999 - 1 <= worked <= max(paces) * 1.001 + 1
