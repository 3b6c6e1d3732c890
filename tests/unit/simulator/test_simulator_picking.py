"""Protects the simulated gateway: it picks the pod that the gateways' own picker would pick where no prefix is shared.

The simulator must not import the gateway. So each part of its rule is compared here with the gateway's: the cost of a pod, the
backlog of prompts, and the constants. A replica that has just started must not get nearly all requests.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_gateway.cluster.state import Pod as RealPod
from pagefleet_gateway.picking import ranking, score
from pagefleet_gateway.picking.prompts import backlog, request_cost
from pagefleet_gateway.picking.score import PodLoad
from pagefleet_simulator.fleet import picking
from pagefleet_simulator.fleet import profile as profiles
from pagefleet_simulator.fleet.engine import Engine
from pagefleet_simulator.fleet.picking import Picking
from pagefleet_simulator.fleet.pods import Pod
from pagefleet_simulator.fleet.request import Arrival, Request

PROFILE = profiles.load("h100x4-llama-70b")
LOADS = st.builds(
    PodLoad,
    in_flight_tokens=st.integers(0, 300_000),
    in_flight_requests=st.integers(1, 300),
    waiting_requests=st.integers(0, 50),
    kv_usage=st.floats(0, 1.2),
    backlog_tokens=st.floats(0, 50_000),
)


@given(loads=st.lists(LOADS, min_size=1, max_size=8), prompt=st.integers(1, 8000), output=st.integers(1, 2000))
def test_a_pod_costs_what_it_costs_the_gateways(loads: list[PodLoad], prompt: int, output: int) -> None:
    typical = sum(one.in_flight_tokens for one in loads) / sum(one.in_flight_requests for one in loads)
    mine = [
        prompt
        + picking.cost(int(one.in_flight_tokens), one.backlog_tokens, int(one.waiting_requests), one.kv_usage, typical)
        for one in loads
    ]
    assert mine == pytest.approx(score.costs(loads, prompt, prompt + output))


def test_the_constants_are_the_gateways() -> None:
    assert picking.INTERFERENCE == score.INTERFERENCE
    assert picking.PRESSURE_FROM == score.PRESSURE_FROM
    assert picking.TIES_PER_REQUEST == score.TIES_PER_REQUEST
    assert picking.EXPECTED_OUTPUT == request_cost.DEFAULT_OUTPUT_TOKENS
    assert picking.MANY == 2 * (ranking.BY_LOT + ranking.BY_PREFIX)
    assert picking.BY_LOT == ranking.BY_LOT


@given(sends=st.lists(st.tuples(st.floats(0.01, 2), st.integers(1, 8000), st.floats(0.05, 5)), min_size=1, max_size=40))
def test_the_backlog_is_the_gateways_estimate(sends: list[tuple[float, int, float]]) -> None:
    real, pod = backlog.Backlogs(), RealPod("uid", "pod", "ns", "chat", "r1", "10.0.0.1:80")
    mine, simulated = Picking(random.Random(1)), _pod(0)
    now = 0.0
    for gap, prompt, seconds in sends:
        now += gap
        real.add_prompt(pod, prompt, now)
        request = Request(Arrival(now, prompt, 100))
        mine.send(simulated, request, now)
        assert mine.backlog(simulated, now) == pytest.approx(real.tokens(pod, now))
        real.record_first_token(pod, prompt, seconds)
        request.first = now + seconds
        mine.end(simulated, request)


def test_a_new_replica_does_not_get_nearly_all_requests() -> None:
    """Two replicas serve 60 requests each when a third one joins, and 40 prompts arrive at once."""
    mine, pods = Picking(random.Random(1)), [_pod(index) for index in range(3)]
    done = Request(Arrival(0.0, 2000, 500))
    mine.send(pods[0], done, 0.0)
    done.first = 0.2  # so the throughput of prompts is known
    mine.end(pods[0], done)
    for pod in pods[:2]:
        for _ in range(60):
            mine.send(pod, Request(Arrival(0.0, 2000, 500)), 0.0)
    picked = Counter[int]()
    for _ in range(40):
        request = Request(Arrival(30.0, 2000, 500))
        pod = mine.best(pods, request, 30.0)
        mine.send(pod, request, 30.0)
        picked[pod.index] += 1
    assert picked[2] < 0.6 * picked.total()
    assert picked[2] == max(picked.values())


def test_more_pods_than_are_looked_at_by_lot() -> None:
    mine, pods = Picking(random.Random(1)), [_pod(index) for index in range(picking.MANY + 1)]
    request = Request(Arrival(0.0, 2000, 500))
    for pod in pods[:20]:
        mine.send(pod, Request(Arrival(0.0, 2000, 500)), 0.0)
    best = {mine.best(pods, request, 0.0).index for _ in range(200)}
    assert best
    assert best.isdisjoint(range(20))


def _pod(index: int) -> Pod:
    return Pod(index, 0.0, Engine(PROFILE))
