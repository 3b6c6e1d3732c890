"""Protects the estimate of a pod's uncomputed prompts: nothing before a throughput is known, never below zero, its own throughput."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagefleet_gateway.cluster.paces import SAMPLES
from pagefleet_gateway.cluster.state import KnownPods, Pod
from pagefleet_gateway.cluster.steps import finish
from pagefleet_gateway.picking.prompts.backlog import MIN_TOKENS, Backlogs

ONE, TWO = (Pod(uid, uid, "team", "chat", "a", f"{uid}:8000") for uid in ("one", "two"))
OTHER = Pod("other", "other", "team", "chat", "b", "other:8000")


def test_prompts_are_worked_off_at_the_throughput_of_the_revision() -> None:
    backlogs = Backlogs()
    backlogs.add_prompt(ONE, 1000, now=10.0)
    assert backlogs.tokens(ONE, 10.0) == 0  # no answer has shown how fast it is
    backlogs.record_first_token(TWO, 1000, 0.5)  # 2,000 tokens a second; its sibling shares that
    backlogs.add_prompt(ONE, 1000, now=20.0)
    assert backlogs.tokens(ONE, 20.0) == 1000 and backlogs.tokens(ONE, 20.25) == 500
    backlogs.add_prompt(ONE, 300, now=20.25)
    assert backlogs.tokens(ONE, 20.25) == 800 and backlogs.tokens(ONE, 30.0) == 0
    backlogs.add_prompt(OTHER, 1000, now=20.0)
    assert backlogs.tokens(OTHER, 20.0) == 0
    finish(backlogs.retain(KnownPods([TWO])))
    backlogs.add_prompt(ONE, 1000, now=40.0)
    assert backlogs.tokens(ONE, 40.0) == 1000


def test_short_prompts_and_nonsense_do_not_change_the_throughput() -> None:
    backlogs = Backlogs()
    for tokens, seconds in ((MIN_TOKENS - 1, 0.1), (1000, 0.0), (1000, -1.0)):
        backlogs.record_first_token(ONE, tokens, seconds)
    backlogs.add_prompt(ONE, 1000, now=1.0)
    assert backlogs.tokens(ONE, 1.0) == 0


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=60))
def test_the_throughput_stays_between_the_slowest_and_the_quickest_answer(answers: list[float]) -> None:
    backlogs = Backlogs()
    for seconds in answers:
        backlogs.record_first_token(ONE, 1000, seconds)
    backlogs.add_prompt(ONE, 1e9, now=0.0)
    worked = 1e9 - backlogs.tokens(ONE, 1.0)
    throughputs = [1000 / seconds for seconds in answers]
    assert min(throughputs) * 0.999 - 1 <= worked <= max(throughputs) * 1.001 + 1


def test_a_slow_pod_works_off_its_backlog_slower() -> None:
    backlogs = Backlogs()
    finish(backlogs.retain(KnownPods([ONE, TWO])))
    backlogs.record_first_token(TWO, 1000, 0.5)
    for _ in range(SAMPLES):
        backlogs.record_first_token(ONE, 10, 0.1, 0.1)
        backlogs.record_first_token(TWO, 10, 0.3, 0.1)
    backlogs.paces.refresh()
    for pod in (ONE, TWO):
        backlogs.add_prompt(pod, 1000, now=0.0)
    assert (round(backlogs.tokens(ONE, 0.1)), round(backlogs.tokens(TWO, 0.1))) == (600, 867)
