"""Protects fairness between tenants over all gateway pods: whichever gateways a tenant's requests wait in, tenants that wait get equal
work from the pods that become free. Real queues, pickers and messages of several gateways, in virtual time."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.cluster.steps import finish
from pagefleet_gateway.holding.holding import Holding
from pagefleet_gateway.holding.shares import LEAD, MAX_TENANTS, Shares
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.picker import Picker
from pagefleet_gateway.sharing.news import News, Newsroom

POD = Pod("1", "p1", "team", "chat", "a", "10.0.0.1:8000")
SERVICE = Service(
    "team", "chat", "smol", (("a", 100),), pod_limit=1, hold_seconds=1e6, hold_requests=10_000, tenant_header="x-tenant"
)
LONGEST = 900  # tokens of a request


class GatewayPod:
    """A gateway pod without its sockets."""

    def __init__(self, name: str, clock: list[float]) -> None:
        state, ledger = State(), Ledger()
        self.name, self.ledger = name, ledger
        picker = Picker(state, ledger, random.Random(1))
        self.holding = Holding(picker, lambda: clock[0], lambda _: None, name=name)
        self.newsroom = Newsroom(ledger, picker.prefixes, self.holding)
        state.put_service(SERVICE)
        state.replace_pods([POD])
        state.confirm([POD])
        self.asked: dict[str, tuple[str, int]] = {}  # tenant and tokens by the request's id
        self.waiting: dict[str, asyncio.Future[object]] = {}
        self.pending = News()

    def ask(self, tenant: str, tokens: int) -> None:
        name = f"{self.name}{len(self.asked)}"
        body = json.dumps({"max_tokens": tokens}).encode()
        answer = self.holding.decide(Request(name, "POST", "/team/chat/v1/completions", {"x-tenant": tenant}, body))
        self.asked[name] = (tenant, tokens)
        if isinstance(answer, asyncio.Future):
            self.waiting[name] = answer
        else:
            assert isinstance(answer, Pick)

    def running(self) -> list[str]:
        done = {name for name, answer in self.waiting.items() if answer.done()}
        return [name for name in self.asked if name not in self.waiting or name in done]


def exchange(pods: list[GatewayPod], whole: bool = False) -> None:
    """Deliver what each has to tell to all others."""
    for pod in pods:
        news = News(whole=True) if whole else pod.newsroom.changes(0.0)
        if whole:
            finish(pod.newsroom.gather(news, 0.0))
        for other in pods:
            if other is not pod:
                finish(other.newsroom.take_over(pod.name, news.message(), 0.0))


REQUESTS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.integers(1, LONGEST)), min_size=12, max_size=60
)


async def played(gateways: int, requests: list[tuple[int, str, int]], seed: int) -> list[tuple[str, int, set[str]]]:
    """Let all requests wait, then end one at a time. Return each that went: its tenant, its tokens, and who waited then."""
    clock, rng = [0.0], random.Random(seed)
    pods = [GatewayPod(f"g{number}", clock) for number in range(gateways)]
    exchange(pods, whole=True)
    pods[0].ask("first", 1)
    exchange(pods)
    for place, tenant, tokens in requests:
        pods[place % gateways].ask(tenant, tokens)
        exchange(pods)
    ended: set[str] = set()
    went: list[tuple[str, int, set[str]]] = []
    for _ in range(len(requests) + 1):
        (pod, name), *more = [(pod, name) for pod in pods for name in pod.running() if name not in ended]
        assert not more, "the pod has one request at a time"
        ended.add(name)
        pod.ledger.close(name)
        waited = {pod.asked[one][0] for pod in pods for one, answer in pod.waiting.items() if not answer.done()}
        went.append((*pod.asked[name], waited | {pod.asked[name][0]}))
        # The gateways learn of the free pod one after another, in any order.
        for other in rng.sample(pods, len(pods)):
            other.holding.release()
            await asyncio.sleep(0)
            exchange(pods)
        while waited and not any(one not in ended for pod in pods for one in pod.running()):
            for other in pods:
                other.holding.release()
                await asyncio.sleep(0)
                exchange(pods)
            clock[0] += 0.02
            assert clock[0] < 1000, "nobody goes"
    return went


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), REQUESTS, st.integers(0, 99))
def test_tenants_that_wait_get_equal_work_from_all_gateways_together(
    gateways: int, requests: list[tuple[int, str, int]], seed: int
) -> None:
    went = asyncio.run(played(gateways, requests, seed))[1:]
    assert len(went) == len(requests)
    work: Counter[str] = Counter()
    for tenant, tokens, waited in went:
        if len(waited) < len({tenant for _, tenant, _ in requests}):
            break  # from here on not all of them wait
        work[tenant] += tokens
        assert max(work.values()) - min(work[one] for one in waited) <= LEAD + LONGEST


@given(st.dictionaries(st.text(max_size=20) | st.just("0/" + "a" * 16), st.none() | st.integers() | st.floats()))
def test_what_is_malformed_is_left_out(served: dict[str, object]) -> None:
    shares = Shares()
    shares.hear(served, whole=False)
    shares.hear(served, whole=True)
    shares.hear([served], whole=True)
    assert all(tokens >= 0 for tokens in shares.all().values()) and shares.take_news() == {}


def test_counts_are_told_once_and_bounded() -> None:
    one, two = Shares(), Shares()
    one.charge(0, "a" * 16, 100)
    two.hear(one.all(), whole=True)
    assert two.of(0, "a" * 16) == 0, "it is among the news that follow"
    two.hear(one.take_news(), whole=False)
    assert two.of(0, "a" * 16) == 100 and one.take_news() == {}
    two.hear(one.all(), whole=True)
    assert two.of(0, "a" * 16) == 100
    for number in range(MAX_TENANTS + 5):
        one.charge(1, f"{number:016x}", 1)
    assert len(one.all()) == MAX_TENANTS + 1 and one.of(1, f"{4:016x}") == 0
