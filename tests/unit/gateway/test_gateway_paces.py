"""Protects what gateways learn of unequal pods: a slow pod is slow beside the others of its revision, whatever was expected; few times,
small differences and nonsense teach nothing; all gateways' times count, and a gateway's tale breaks none."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_gateway.cluster.paces import MOST, SAMPLES, Paces
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod
from pagefleet_gateway.cluster.steps import finish
from pagefleet_gateway.measuring import access_log
from pagefleet_gateway.measuring.access_log import LogLine
from pagefleet_gateway.picking.expected import Load, LoadAtPick
from pagefleet_gateway.picking.ledger import Ledger, Ticket

PODS = [Pod(str(number), "p", "team", "chat", "a", "a:8000") for number in range(21)]
OTHER = Pod("other", "p", "team", "chat", "b", "b:8000")


def by_uid(*pods: Pod) -> dict[str, Pod]:
    return {pod.uid: pod for pod in pods}


def learned(*quotients: float, samples: int = SAMPLES) -> list[float]:
    """Return the slowness of pods whose times are so many times those expected."""
    paces = Paces()
    finish(paces.retain(by_uid(*PODS[: len(quotients)], OTHER)))
    for _ in range(samples):
        paces.learn(OTHER, 100.0, 0.2)
        for pod, quotient in zip(PODS, quotients, strict=False):
            paces.learn(pod, quotient * 0.2, 0.2)
    paces.refresh()
    assert paces.of(OTHER) == 1.0, "another revision's pods are no measure"
    return [round(paces.of(pod), 6) for pod in PODS[: len(quotients)]]


def test_a_slow_pod_is_slow_beside_its_revision_whatever_was_expected() -> None:
    assert learned(1.0, 3.0) == [0.5, 1.5]
    assert learned(2.0, 6.0) == [0.5, 1.5], "what was expected was too little for both"
    assert learned(1.0, 1.0, 1.0, 10.0)[3] == pytest.approx(10 / 3.25, abs=1e-5)
    assert learned(*[1.0] * 20, 1000.0)[20] == MOST


def test_a_few_requests_that_wait_very_long_make_no_pod_slow() -> None:
    paces = Paces()
    finish(paces.retain(by_uid(*PODS[:2])))
    for number in range(2 * SAMPLES):
        paces.learn(PODS[0], 0.1, 0.1)
        paces.learn(PODS[1], 5.0 if number % 40 == 0 else 0.1, 0.1)
    paces.refresh()
    assert paces.of(PODS[0]) == paces.of(PODS[1]) == 1.0


def test_few_times_small_differences_and_nonsense_teach_no_speed() -> None:
    assert learned(1.0, 3.0, samples=SAMPLES - 1) == [1.0, 1.0]
    assert learned(1.0, 1.3) == [1.0, 1.0]
    assert learned(3.0) == [1.0], "there is no other pod"
    paces = Paces()
    finish(paces.retain(by_uid(*PODS[:2])))
    for seconds, expected in ((0.0, 1.0), (1.0, 0.0), (1.0, -1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, None)):
        for _ in range(SAMPLES):
            paces.learn(PODS[0], seconds, expected)
            paces.learn(PODS[1], 1.0, 1.0)
    paces.refresh()
    assert paces.of(PODS[0]) == paces.of(PODS[1]) == 1.0


def test_the_times_of_all_gateways_count_and_a_pod_that_is_gone_is_forgotten() -> None:
    one, two = Paces(), Paces()
    for paces in (one, two):
        finish(paces.retain(by_uid(*PODS[:2])))
        for _ in range(SAMPLES // 2):
            paces.learn(PODS[0], 0.1, 0.1)
            paces.learn(PODS[1], 0.3, 0.1)
    one.refresh()
    assert one.of(PODS[1]) == 1.0, "too few of its own"
    assert two.rows(["0", "1"]) == two.take_changed() and two.take_changed() == {}
    one.hear("two", two.rows(["0", "1"]))
    one.hear("two", two.rows(["0", "1"]))
    one.refresh()
    assert (round(one.of(PODS[0]), 3), round(one.of(PODS[1]), 3)) == (0.5, 1.5)
    finish(one.retain(by_uid(PODS[1])))
    assert one.of(PODS[0]) == 1.0 and set(one.own) == {"1"}


@given(
    st.none()
    | st.integers()
    | st.dictionaries(
        st.integers(0, 1).map(str) | st.integers(),
        st.none() | st.lists(st.integers(-1, 1 << 50) | st.floats() | st.booleans(), max_size=4),
    )
)
def test_what_is_malformed_is_left_out(rows: object) -> None:
    paces = Paces()
    finish(paces.retain(by_uid(*PODS[:2])))
    paces.hear("two", rows)
    paces.refresh()
    assert all(1 / MOST <= paces.of(pod) <= MOST for pod in PODS[:2])


def test_a_retry_at_the_same_pod_teaches_no_pace() -> None:
    ledger, pod = Ledger(), Pod("1", "p", "team", "chat", "a", "10.0.0.1:8000")
    at_pick = LoadAtPick(Load(1000.0, 0.0), "s", expected=0.1, reference=True)
    service = Service("team", "chat", weights=(("a", 100),))
    # With one pod and two retries the choices are that pod, three times.
    ticket = Ticket(service, "a", "s", (pod,) * 3, 1e9, uncached_tokens=1000, streams=True, at_pick=at_pick)
    ledger.open("1", ticket)
    ledger.record_failed_attempt("1")
    access_log.complete(LogLine("1", 0.0, 200, frozenset(), 5.1, 6.0, 2, pod.address, True, {}), ledger, 6.0)
    assert not ledger.backlogs.paces.own
