"""Protects ejection (growing, with a trial, never for what began before it, by all
gateways when one saw the failure) and the retry budget of a service."""

from __future__ import annotations

from pagefleet_gateway.cluster.steps import finish
from pagefleet_gateway.picking.outliers import ERRORS_TO_EJECT, Outliers, merged
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
    finish(pods.retain(()))
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


def told(one: Outliers, other: Outliers, now: float) -> None:
    other.hear(one.take_changed(now), now)


def test_a_pod_that_fails_at_one_gateway_is_ejected_by_the_others_until_one_gets_a_good_answer() -> None:
    one, two, new = Outliers(), Outliers(), Outliers()
    one.record_failure("a", 0.0)
    told(one, two, 0.02)
    assert two.ejected("a", 0, 4.9) and not two.ejected("a", 0, 5.1) and two.ejected("a", 1, 5.1)
    two.record_failure("a", 5.5)  # the trial failed: twice as long, at both
    told(two, one, 5.52)
    assert all(pods.ejected("a", 0, 15.4) and not pods.ejected("a", 0, 15.6) for pods in (one, two))
    new.hear(one.rows(6.0), 6.0)
    assert new.ejected("a", 0, 15.4) and not new.ejected("a", 0, 15.6)
    one.record_success("a", 16.0)
    told(one, two, 16.02)
    told(one, new, 16.02)  # nothing is new any more
    assert not two.ejected("a", 1, 16.02) and new.ejected("a", 1, 16.02)


def test_errors_count_over_gateways_and_a_good_answer_of_any_ends_the_row() -> None:
    one, two = Outliers(), Outliers()
    for _ in range(3):
        one.record_error("a", 0.0)
    told(one, two, 0.1)
    two.record_error("a", 0.2)
    assert not two.ejected("a", 0, 0.3)
    two.record_error("a", 0.3)
    told(two, one, 0.4)
    assert one.ejected("a", 0, 0.5) and two.ejected("a", 0, 0.5)
    one.record_error("b", 0.0)
    told(one, two, 0.1)
    two.record_success("b", 0.2)
    told(two, one, 0.3)
    for _ in range(ERRORS_TO_EJECT - 1):
        one.record_error("b", 0.4)
    assert not one.ejected("b", 0, 0.5)


def test_rows_that_come_together_are_one_and_malformed_ones_are_left_out() -> None:
    assert merged(None, [0, 0, 2]) == [0, 0, 2] and merged([0, 0, 2], [1, 5000, 1]) == [1, 5000, 3]
    assert merged([1, 5000, 3], [0, 0, 0]) == [0, 0, 0]
    pods = Outliers()
    for rows in (
        None,
        3,
        [],
        {"a": None},
        {"a": [1]},
        {"a": [1, -1, 0]},
        {"a": [1, 1e9, 0]},
        {"a": [99, 5, 0]},
        {1: [1, 5000, 0]},
    ):
        pods.hear(rows, 0.0)
    assert pods.count(0.0) == 0 and not pods.rows(0.0)
