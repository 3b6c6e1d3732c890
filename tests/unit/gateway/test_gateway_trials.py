"""Protects users from a canary that has never answered: few requests wait for its first answer, the others go to the stable
revision, and the weights are exact from that answer on."""

from __future__ import annotations

from collections import Counter

import pytest
from support.virtual.gateway import CANARY, PATH, STABLE, VirtualGateway

from pagefleet_gateway.cluster.state import KnownPods
from pagefleet_gateway.cluster.steps import finish
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.routing import Refusal
from pagefleet_gateway.picking.split import TRIAL_REQUESTS


def sent(gateway: VirtualGateway, count: int, now: float, **headers: str) -> Counter[str]:
    return Counter(gateway.send(now + place * 0.01, **headers)[1].revision for place in range(count))


def test_at_most_six_requests_wait_for_the_first_answer_of_a_canary() -> None:
    gateway = VirtualGateway()
    assert sent(gateway, 100, 1.0) == {CANARY: TRIAL_REQUESTS, STABLE: 100 - TRIAL_REQUESTS}


def test_a_first_token_ends_the_trial_and_the_weights_are_exact_from_then_on() -> None:
    gateway = VirtualGateway()
    request = next(name for name, pick in (gateway.send(1.0) for _ in range(20)) if pick.revision == CANARY)
    gateway.first_token(request, 0.5, 1.5)
    found = sent(gateway, 100, 2.0)
    assert abs(found[CANARY] - 50) <= 1


@pytest.mark.parametrize(("code", "waits"), [(200, False), (404, False), (503, True)])
def test_an_answer_without_a_stream_ends_the_trial_unless_it_is_a_5xx(code: int, waits: bool) -> None:
    gateway = VirtualGateway()
    request = next(
        name for name, pick in (gateway.send(1.0, stream=False) for _ in range(20)) if pick.revision == CANARY
    )
    gateway.end(request, 1.5, code=code)
    assert (sent(gateway, 100, 2.0)[CANARY] <= TRIAL_REQUESTS) is waits


def test_clients_that_leave_make_room_for_others_and_do_not_end_the_trial() -> None:
    gateway = VirtualGateway()
    waiting = [name for name, pick in (gateway.send(1.0) for _ in range(40)) if pick.revision == CANARY]
    assert len(waiting) == TRIAL_REQUESTS
    gateway.leave(waiting[0], 4.0)
    assert sent(gateway, 100, 5.0)[CANARY] == 1


@pytest.mark.parametrize(("gateways", "each"), [(1, 6), (2, 3), (4, 1), (8, 1)])
def test_gateways_share_the_requests_on_trial(gateways: int, each: int) -> None:
    gateway = VirtualGateway()
    gateway.ledger.trials.share(gateways)
    assert sent(gateway, 100, 1.0)[CANARY] == each


def test_a_header_forces_a_canary_on_trial() -> None:
    gateway = VirtualGateway(canary_headers=(("x-canary", "1"),))
    assert sent(gateway, 30, 1.0, x_canary="1") == {CANARY: 30}


def test_a_canary_with_all_the_weight_gets_all_requests() -> None:
    gateway = VirtualGateway(weights=((CANARY, 100),))
    assert sent(gateway, 30, 1.0) == {CANARY: 30}


def test_the_stable_revision_is_never_on_trial() -> None:
    gateway = VirtualGateway(weights=((STABLE, 100),), canary="")
    assert sent(gateway, 30, 1.0) == {STABLE: 30}


def test_a_revision_whose_pods_are_gone_is_on_trial_again() -> None:
    gateway = VirtualGateway()
    request = next(name for name, pick in (gateway.send(1.0) for _ in range(20)) if pick.revision == CANARY)
    gateway.first_token(request, 0.5, 1.5)
    finish(gateway.ledger.sweep(KnownPods(pod for pod in gateway.pods if pod.revision == STABLE), 2.0))
    assert sent(gateway, 100, 3.0)[CANARY] <= TRIAL_REQUESTS


@pytest.mark.parametrize("sticky", [False, True])
def test_a_canary_on_trial_takes_no_stable_pod_over_its_limit(sticky: bool) -> None:
    """A canary that hangs has room for ever: its room is none for requests that it does not get."""
    gateway = VirtualGateway(pods=1, pod_limit=8, sticky_header="x-user" if sticky else "")
    decisions = []
    for number in range(100):
        request = Request(f"q{number}", "POST", PATH, {"x-user": str(number)}, b'{"prompt": "a", "stream": true}')
        decisions.append(gateway.picker.decide(request, 1.0))
    picks = Counter(one.revision for one in decisions if isinstance(one, Pick))
    assert picks == {STABLE: 8, CANARY: TRIAL_REQUESTS}
    assert {one.code for one in decisions if isinstance(one, Refusal)} == {"overloaded"}
