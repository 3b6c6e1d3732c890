"""Protects ejection (growing, with a trial, never for what began before it) and the retry budget of a service."""

from __future__ import annotations

from pagefleet_gateway.picking.outliers import ERRORS_TO_EJECT, Outliers
from pagefleet_gateway.picking.retry_budget import CAPACITY, RetryBudgets


def test_a_pod_that_fails_again_stays_out_longer_and_a_good_answer_forgives() -> None:
    pods = Outliers()
    pods.record_failure("a", 0.0)
    pods.record_failure("a", 1.0)  # the same failure, met by another request
    assert pods.ejected("a", 0, 4.9) and not pods.ejected("a", 0, 5.0)
    pods.record_failure("a", 6.0)
    assert pods.ejected("a", 0, 15.9) and not pods.ejected("a", 0, 16.0)
    pods.record_success("a", 15.0)  # began before it failed
    assert pods.ejected("a", 0, 15.9) and pods.count(15.9) == 1
    assert pods.ejected("a", 1, 16.0)  # on trial: one at a time
    pods.record_success("a", 17.0)
    assert not pods.ejected("a", 9, 17.0)
    for turn in range(20):
        pods.record_failure("b", turn * 100.0)
    assert pods.ejected("b", 0, 1959.0) and not pods.ejected("b", 0, 1961.0)  # a minute at most
    pods.retain(())
    assert not pods.ejected("b", 0, 1959.0)


def test_errors_eject_only_in_a_row() -> None:
    pods = Outliers()
    for _ in range(3):
        for _ in range(ERRORS_TO_EJECT - 1):
            pods.record_error("a", 0.0)
        assert not pods.ejected("a", 3, 0.0)
        pods.record_success("a", 0.0)
    for _ in range(ERRORS_TO_EJECT):
        pods.record_error("a", 0.0)
    assert pods.ejected("a", 0, 1.0)


def test_a_service_that_only_fails_is_not_asked_twice_for_ever() -> None:
    budgets, key, other = RetryBudgets(), ("team", "chat"), ("team", "other")
    spent = 0
    while budgets.allows(key):
        budgets.settle(key, retries=2, answered=False)
        spent += 2
    assert spent == CAPACITY and budgets.allows(other)
    for _ in range(2):
        budgets.settle(key, retries=0, answered=True)
    assert budgets.allows(key)
    for _ in range(1000):
        budgets.settle(key, retries=1, answered=True)  # each needs its retry: half of them get one
    assert not budgets.allows(key)
