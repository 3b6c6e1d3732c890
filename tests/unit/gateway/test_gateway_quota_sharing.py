"""Protects that gateway pods share one quota: together they allow it once, wherever the requests come, also after a loss.

The exchange runs in virtual time, as pagefleet_gateway/sharing/quotas.py drives it: every quarter of a second each pod asks each other one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from kubernetes.aio import client

from pagefleet_gateway.cluster.service import RateLimit, Service
from pagefleet_gateway.limits.buckets import digest
from pagefleet_gateway.limits.rate_limits import Charge, RateLimits
from pagefleet_gateway.limits.sharing import MAX_BUCKETS, Sharing
from pagefleet_gateway.sharing.members import Members
from pagefleet_gateway.sharing.quotas import Quotas
from pagefleet_gateway.watching.kube import gateways_feed

QUOTA = 1200
SERVICE = Service("team", "chat", limits=(RateLimit("x-tenant", QUOTA, 0),))
PERIOD = 0.25


class Gateway:
    def __init__(self, name: str, started: float = 0.0) -> None:
        self.name = name
        self.limits = RateLimits()
        self.sharing = Sharing(self.limits, started)

    def request(self, now: float) -> bool:
        return isinstance(self.limits.take(SERVICE, {"x-tenant": "t"}, 0, now), Charge)

    def pull(self, other: Gateway, now: float, *, lost: bool = False) -> None:
        rows = self.sharing.ask(now)
        answer = other.sharing.answer(self.name, rows, now)
        if not lost:
            self.sharing.receive(other.name, answer, now)


class Cluster:
    def __init__(self, count: int) -> None:
        self.now = 0.0
        self.gateways = [Gateway(f"g{number}") for number in range(count)]
        self.connect()

    def connect(self) -> None:
        for one in self.gateways:
            one.sharing.set_peers(frozenset(other.name for other in self.gateways if other is not one))

    def run(self, seconds: float, ask: Callable[[Gateway], int], lost: Callable[[], bool] = lambda: False) -> int:
        """Send `ask(gateway)` requests to each in every period. Return how many were allowed."""
        allowed = 0
        for _ in range(round(seconds / PERIOD)):
            for one in self.gateways:
                allowed += sum(one.request(self.now) for _ in range(ask(one)))
            for one in self.gateways:
                for other in self.gateways:
                    if one is not other:
                        one.pull(other, self.now, lost=lost())
            self.now += PERIOD
        return allowed


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("skew", ["even", "one", "ten to one"])
def test_together_they_allow_the_quota_once(count: int, skew: str) -> None:
    cluster = Cluster(count)

    def ask(one: Gateway) -> int:
        first = one is cluster.gateways[0]
        return 40 if skew == "even" else 40 if first else 4 if skew == "ten to one" else 0

    allowed = cluster.run(60, ask)
    assert 0.9 * 2 * QUOTA <= allowed <= 1.02 * 2 * QUOTA  # the full bucket, and a minute's rate


def test_an_idle_quota_does_not_grow_beyond_a_minutes_worth() -> None:
    cluster = Cluster(2)
    cluster.run(30, lambda one: 40 if one is cluster.gateways[0] else 0)
    cluster.run(600, lambda _: 0)
    burst = cluster.run(2.5, lambda _: 400)
    assert 0.9 * QUOTA <= burst <= 1.1 * QUOTA + 2.5 * QUOTA / 60


def test_the_demand_may_move_from_one_pod_to_the_other() -> None:
    cluster = Cluster(2)
    cluster.run(60, lambda one: 40 if one is cluster.gateways[0] else 0)
    allowed = cluster.run(60, lambda one: 40 if one is cluster.gateways[1] else 0)
    assert 0.9 * QUOTA <= allowed <= 1.05 * QUOTA


def test_lost_answers_never_make_a_quota_larger() -> None:
    cluster, rng = Cluster(3), random.Random(1)
    allowed = cluster.run(60, lambda _: 20, lambda: rng.random() < 0.5)
    assert 0.75 * 2 * QUOTA <= allowed <= 1.02 * 2 * QUOTA


def test_a_pod_that_dies_costs_the_others_at_most_its_level() -> None:
    cluster = Cluster(3)
    cluster.run(60, lambda _: 40)
    cluster.gateways.pop()
    cluster.run(3, lambda _: 40)  # until it is known to be gone
    cluster.connect()
    allowed = cluster.run(60, lambda _: 40)
    assert 0.95 * QUOTA <= allowed <= 1.05 * QUOTA


def test_a_new_pod_brings_no_second_quota() -> None:
    cluster = Cluster(1)
    cluster.run(60, lambda _: 40)
    for number in range(3):  # a rollout that replaces pods
        cluster.gateways.append(Gateway(f"new{number}", started=cluster.now))
        cluster.connect()
        allowed = cluster.run(10, lambda _: 40)
        assert allowed <= 1.05 * QUOTA / 6 + 40


async def test_the_other_ready_gateway_pods_are_members() -> None:
    members = Members("one")

    def pod(name: str, ready: str = "True", address: str = "10.0.0.2") -> dict[str, object]:
        conditions = [{"type": "Ready", "status": ready}]
        return {"metadata": {"name": name}, "status": {"podIP": address, "conditions": conditions}}

    async with client.ApiClient() as api:
        feed = gateways_feed(api, "pagefleet-system", members)
        feed.replace([pod("one"), pod("two"), pod("three", ready="False"), pod("four", address="fd00::4")])
        assert members.addresses == {"two": "10.0.0.2:9002", "four": "[fd00::4]:9002"}
        feed.upsert(pod("three", address="10.0.0.3"))
        feed.upsert(pod("two", ready="False"))
        feed.remove(pod("four"))
        assert members.addresses == {"three": "10.0.0.3:9002"}


@pytest.mark.parametrize(
    "rows",
    [None, {}, [1], [[]], [["", "xyz", 1, 1, 1]], [["", "00" * 16, "1", 1, 1]], [["", "00" * 16, 1, None, 1]]],
)
def test_nonsense_from_another_pod_is_left_out(rows: Any) -> None:
    sharing = Sharing(RateLimits(), 0.0)
    assert sharing.answer("other", rows, 0.0) == []
    sharing.receive("other", rows, 0.0)


def test_what_is_no_number_is_left_out() -> None:
    sharing = Sharing(RateLimits(), 0.0)
    for bad in (float("nan"), float("inf"), -1):
        assert sharing.answer("other", [["", "00" * 16, bad, 1, 1]], 0.0) == []


def test_of_thousands_of_values_only_those_that_are_sent_are_looked_at() -> None:
    """Clients choose how many values a header has. Rows for all of them took a third of a second, four times a second."""
    gateway, service = Gateway("one"), Service("team", "chat", limits=(RateLimit("x-tenant", 60, 0),))
    gateway.sharing.set_peers(frozenset({"two"}))
    for number in [*range(3 * MAX_BUCKETS), 7, 7, 7]:
        gateway.limits.take(service, {"x-tenant": str(number)}, 0, 0.0)
    rows = gateway.sharing.ask(1.0)
    names = {bytes.fromhex(str(row[1])) for row in rows}
    stored = gateway.limits.buckets.values["team/chat"]
    assert len(rows) == MAX_BUCKETS and {name for name, bucket in stored.items() if bucket.at == 1.0} == names
    assert rows[0][1] == digest("x-tenant", "requests", "60", "7").hex()
    # A request that its own bucket refuses waits for no exchange that leaves the bucket out.
    assert {name for name in stored if gateway.sharing.asks(name)} == names
    assert gateway.sharing.ask(60.0) == [] and all(map(gateway.sharing.asks, stored))


async def test_a_gateway_that_goes_while_it_is_asked_does_not_end_the_exchange() -> None:
    limits, members = RateLimits(), Members("one")
    quotas = Quotas(limits, members)
    members.put("two", "127.0.0.1:1")
    for _ in range(10):
        limits.take(SERVICE, {"x-tenant": "t"}, 0, time.monotonic())
    following = asyncio.create_task(quotas.follow())
    # After the exchange has begun, and before its question is sent.
    asyncio.get_running_loop().call_soon(members.remove, "two")
    exchanged = asyncio.create_task(quotas.exchange())
    await asyncio.wait([following, exchanged], return_when=asyncio.FIRST_COMPLETED)
    assert exchanged.done() and not following.done()
    following.cancel()
