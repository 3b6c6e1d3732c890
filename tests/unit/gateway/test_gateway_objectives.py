"""Protects the counts behind error budgets: a request keeps or misses an objective as its client saw it, the gateway's queue
included; it counts once, in its own priority, and the same in /windows as in the metrics."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace

import pytest
from support.virtual.gateway import NAME, NAMESPACE, PATH, STABLE, VirtualGateway

from pagefleet_contract.slo import Objective
from pagefleet_gateway.cluster.objects import service_from
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.steps import finish
from pagefleet_gateway.measuring.objectives import judge, judge_refusal
from pagefleet_gateway.measuring.slices import End, Outcome
from pagefleet_gateway.picking.ledger import Group
from pagefleet_gateway.picking.pick import Request

TTFT = Objective("chat", "ttft", 0.05, 2.0)
E2E, TPOT, FAILED = (
    Objective("whole", "e2e", 0.05, 10.0),
    Objective("gap", "tpot", 0.1, 0.1),
    Objective("up", "errors", 0.01),
)
LIVE = replace(TTFT, name="live", priority="live")
CLASSES = ((("x-tier", "live"),), (("x-tier", "batch"),))
SERVICE = Service(
    "team", "chat", objectives=(TTFT, E2E, TPOT, FAILED), priorities=CLASSES, priority_names=("live", "batch")
)
GOOD = Outcome(Group("team", "chat", "a", "s"), End.ANSWERED, age=5.0, e2e=5.0, ttft=1.0, tokens=81, priority=2)


def judged(outcome: Outcome, service: Service = SERVICE) -> dict[str, bool]:
    return {objective.name: missed for objective, missed in judge(service, outcome)}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {"chat": False, "whole": False, "gap": False, "up": False}),
        ({"ttft": 2.01}, {"chat": True, "whole": False, "gap": False, "up": False}),
        ({"held": 1.01}, {"chat": True, "whole": False, "gap": False, "up": False}),
        ({"held": 6.0}, {"chat": True, "whole": True, "gap": False, "up": False}),
        ({"e2e": 9.9}, {"chat": False, "whole": False, "gap": True, "up": False}),
        ({"tokens": None}, {"chat": False, "whole": False, "up": False}),
        # A request that was not streamed has no first token, and is not late for it.
        ({"ttft": None}, {"whole": False, "up": False}),
        ({"end": End.FAILED, "ttft": None, "waiting": True}, {"chat": True, "whole": True, "up": True}),
        ({"end": End.FAILED}, {"chat": False, "whole": True, "up": True}),
        ({"end": End.REFUSED, "ttft": None, "waiting": True}, {}),
        ({"end": End.LOST, "ttft": None, "waiting": True}, {}),
        # Another revision has answered: the client got what it asked for.
        ({"end": End.ELSEWHERE, "ttft": None, "waiting": True}, {"up": False}),
        # Clients that leave: before the bound nothing is known, after it the promise was broken.
        ({"end": End.LEFT, "ttft": None, "waiting": True, "age": 1.9}, {}),
        ({"end": End.LEFT, "ttft": None, "waiting": True, "age": 2.1}, {"chat": True}),
        ({"end": End.LEFT, "ttft": None, "waiting": True, "age": 1.9, "held": 0.2}, {"chat": True}),
        ({"end": End.LEFT, "age": 11.0}, {"chat": False, "whole": True}),
        ({"forced": True}, {}),
        ({"fallback": True}, {}),
    ],
)
def test_a_request_counts_as_its_client_saw_it(change: dict[str, object], expected: dict[str, bool]) -> None:
    assert judged(replace(GOOD, **change)) == expected  # type: ignore[arg-type]


def test_an_objective_of_a_priority_counts_its_requests_alone() -> None:
    service = replace(SERVICE, objectives=(LIVE,))
    assert judged(replace(GOOD, priority=0), service) == {"live": False}
    assert judged(replace(GOOD, priority=1), service) == judged(replace(GOOD, priority=2), service) == {}


def test_a_request_that_the_gateway_sheds_is_an_error_and_one_over_its_limit_is_not() -> None:
    assert list(judge_refusal(SERVICE, 503, 2)) == [(FAILED, True)]
    assert list(judge_refusal(SERVICE, 429, 2)) == []
    assert list(judge_refusal(replace(SERVICE, objectives=(replace(FAILED, priority="live"),)), 503, 1)) == []


def test_the_object_s_objectives_are_read_and_odd_ones_are_left_out() -> None:
    spec = {
        "traffic": {"priorities": [{"name": "live", "header": {"X-Tier": "live"}}]},
        "slo": {
            "objectives": [
                {"name": "live", "signal": "ttft", "seconds": 2, "quantile": 0.99, "priority": "live"},
                {"name": "up", "signal": "errors", "maxRate": "0.5%"},
                {"name": "a", "signal": "errors", "maxRate": "much"},
                {"name": "b", "signal": "queue", "seconds": 1},
                {"name": "c", "signal": "ttft"},
                {"name": "d", "signal": "ttft", "seconds": True},
                {"name": "", "signal": "ttft", "seconds": 1},
                7,
            ]
        },
    }
    service = service_from({"metadata": {"namespace": "team", "name": "chat"}, "spec": spec})
    live, up = service.objectives
    assert (live, up) == (Objective("live", "ttft", 0.01, 2.0, "live"), Objective("up", "errors", 0.005))
    assert service.is_of(live, service.priority({"x-tier": "live"})) and not service.is_of(live, service.priority({}))
    assert (live.promise, up.promise) == (
        "99% of ttft of priority live within 2 s",
        "at most 0.5% of requests fail",
    )
    assert service_from({"spec": {"slo": {"objectives": "none"}}}).objectives == ()


def test_windows_and_metrics_count_a_request_once_when_it_ends() -> None:
    gateway = VirtualGateway(weights=((STABLE, 100),), objectives=(TTFT, FAILED))
    gateway.state.put_service(gateway.state.snapshot.services[NAMESPACE, NAME])
    finish(gateway.counting.sweep(gateway.state))
    quick, _ = gateway.send(0.0)
    late, _ = gateway.send(0.0)
    gateway.first_token(quick, 1.0, 1.0)
    gateway.end(quick, 4.5)
    gateway.first_token(late, 3.0, 3.0)
    gateway.end(late, 4.6)
    gateway.counting.record_refusal(gateway.state.snapshot.services[NAMESPACE, NAME], 503, 0)
    gateway.counting.record_refusal(gateway.state.snapshot.services[NAMESPACE, NAME], 429, 0)
    counted = [piece for piece in gateway.slices(1000.0) if piece.slo]
    assert [(piece.start, piece.revision, piece.slo) for piece in counted] == [
        (4.0, "", {"chat/ttft<=2/": (2, 1), "up/errors/": (3, 1)})
    ]
    page = gateway.metrics.text().decode()
    of = 'namespace="team",objective="{}",revision="{}",service="chat"'
    assert f"pagefleet_gateway_slo_requests_total{{{of.format('chat', STABLE)}}} 2.0" in page
    assert f"pagefleet_gateway_slo_missed_total{{{of.format('chat', STABLE)}}} 1.0" in page
    assert f"pagefleet_gateway_slo_missed_total{{{of.format('up', '')}}} 1.0" in page
    assert 'pagefleet_gateway_slo_allowed_ratio{namespace="team",objective="chat",service="chat"} 0.05' in page


async def test_a_client_that_leaves_the_queue_counts_once_it_has_waited_for_longer_than_promised() -> None:
    gateway = VirtualGateway(weights=((STABLE, 100),), objectives=(TTFT, E2E, FAILED), hold_seconds=60.0)
    gateway.state.replace_pods([])
    for number, (seconds, streams) in enumerate(((1.9, True), (2.1, True), (2.1, False), (10.1, True), (10.1, False))):
        body = json.dumps({"prompt": "x", "stream": streams}).encode()
        held = gateway.holding.decide(Request(f"r{number}", "POST", PATH, {}, body))
        assert isinstance(held, asyncio.Future)
        gateway.now += seconds
        held.cancel()
        await asyncio.sleep(0)
    answered = gateway.holding.decide(Request("r9", "POST", PATH, {}, b""))
    gateway.now += 20.0
    gateway.state.replace_pods(gateway.pods)
    gateway.state.confirm(gateway.pods)
    gateway.holding.release()
    assert isinstance(answered, asyncio.Future) and answered.done()
    counted = Counter[str]()
    for piece in gateway.slices(1000.0):
        for key, (requests, missed) in piece.slo.items():
            counted[key] += requests
            assert requests == missed
    assert counted == {TTFT.key: 2, E2E.key: 2}
    gateway.state.remove_service((NAMESPACE, NAME))
    gateway.state.replace_pods([])
    for now in (1002.0, 1400.0):
        gateway.now = now
        finish(gateway.counting.sweep(gateway.state))
    assert "slo_missed_total{" not in gateway.metrics.text().decode()


def test_the_series_of_a_service_that_is_gone_go_with_it() -> None:
    gateway = VirtualGateway(weights=((STABLE, 100),), objectives=(TTFT,))
    request, _ = gateway.send(0.0)
    gateway.end(request, 1.0, ttft_us=0.5e6)
    gateway.state.remove_service((NAMESPACE, NAME))
    gateway.state.replace_pods([])
    for now in (2.0, 400.0):
        gateway.now = now
        finish(gateway.counting.sweep(gateway.state))
    assert 'objective="chat"' not in gateway.metrics.text().decode()
