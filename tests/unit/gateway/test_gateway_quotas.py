"""Protects quotas: what a request is charged before it is sent, what it is settled with, and bounded, fixed-size buckets.

No way of writing a request evades `tokensPerMinute`, an estimate that was too high is given back, and nobody can reset
another client's allowance by sending many values.
"""

from __future__ import annotations

import json
import random
import tracemalloc

import pytest

from pagefleet_gateway.cluster.objects import service_from
from pagefleet_gateway.cluster.service import RateLimit, Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.cluster.steps import finish
from pagefleet_gateway.limits import api_keys, buckets
from pagefleet_gateway.limits.charges import Answer
from pagefleet_gateway.limits.rate_limits import Charge, Exceeded, RateLimits
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.picker import Picker
from pagefleet_gateway.picking.prompts.request_cost import DEFAULT_OUTPUT_LIMIT, MEDIA_TOKENS, request_cost
from pagefleet_gateway.picking.refusals import RATE_LIMITED
from pagefleet_gateway.picking.routing import Refusal

SERVICE = Service("team", "chat", "smol", (("a", 100),), limits=(RateLimit("x-tenant", 0, 10_000),))
POD = Pod("1", "p1", "team", "chat", "a", "10.0.0.1:8000")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def charged(path: str, service: Service = SERVICE, **document: object) -> int:
    cost = request_cost(json.dumps(document).encode(), path)
    return cost.prompt_tokens + cost.most_output_tokens(service)


class World:
    """A picker with one service, and requests of one tenant."""

    def __init__(self, service: Service = SERVICE, pods: tuple[Pod, ...] = (POD,)) -> None:
        self.state = State()
        self.state.put_service(service)
        self.state.replace_pods(pods)
        self.state.confirm(pods)
        self.picker = Picker(self.state, Ledger(), random.Random(1))
        self.count = 0

    def ask(self, **document: object) -> Pick | Refusal:
        self.count += 1
        body = json.dumps({"model": "smol", **document}).encode()
        request = Request(f"r{self.count}", "POST", f"/team/chat{COMPLETIONS}", {"x-tenant": "t"}, body)
        return self.picker.decide(request, 0.0)

    def settle(self, **answer: int) -> None:
        self.picker.charges.settle(f"r{self.count}", Answer(**{"code": 200, **answer}))

    def left(self, unit: str = "tokens", per_minute: int = 10_000) -> float:
        bucket = self.picker.limits.buckets.find("team/chat", buckets.digest("x-tenant", unit, str(per_minute), "t"))
        assert bucket is not None
        return bucket.level


@pytest.mark.parametrize(
    ("path", "document", "tokens"),
    [
        (COMPLETIONS, {"prompt": "x" * 400, "max_tokens": 7}, 107),
        (COMPLETIONS, {"prompt": "x" * 400, "max_tokens": 100_000}, 100_100),
        (COMPLETIONS, {"prompt": "x" * 400, "max_tokens": 10, "n": 128}, 1380),
        (COMPLETIONS, {"prompt": "x" * 400, "max_tokens": 10, "best_of": 8, "n": 2}, 180),
        (COMPLETIONS, {"prompt": ["x" * 400, "y" * 396], "max_tokens": 10}, 220),
        (COMPLETIONS, {"prompt": list(range(1000)), "max_tokens": 10}, 1010),
        (COMPLETIONS, {"prompt": [[1] * 100, [2] * 100], "max_tokens": 10}, 221),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 394}]}, 100 + DEFAULT_OUTPUT_LIMIT),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 394}], "max_completion_tokens": 5}, 105),
        ("/v1/embeddings", {"input": "x" * 400}, 100),
        ("/v1/embeddings", {"input": ["x" * 400] * 2}, 201),
        ("/v1/responses", {"input": "x" * 400, "max_output_tokens": 50}, 150),
        ("/v1/responses", {"instructions": "y" * 400, "input": [{"role": "user", "content": "x" * 394}]}, 201 + 4096),
        # Engines without a report of their tokens: what they ignore, and how they read numbers, must not make an answer cheap.
        (f"{CHAT}?of=/embeddings", {"prompt": "x" * 400, "max_tokens": 50}, 150),
        (f"{CHAT}#/embeddings", {"prompt": "x" * 400, "max_tokens": 50}, 150),
        (CHAT, {"prompt": "x" * 400, "max_output_tokens": 1}, 100 + DEFAULT_OUTPUT_LIMIT),
        (CHAT, {"prompt": "x" * 400, "max_completion_tokens": 0}, 100 + DEFAULT_OUTPUT_LIMIT),
        (CHAT, {"prompt": "x" * 400, "max_completion_tokens": 1, "max_tokens": 9000}, 9100),
        (CHAT, {"prompt": "x" * 400, "max_completion_tokens": "9000", "max_tokens": 1}, 9100),
        (COMPLETIONS, {"prompt": "x" * 400, "max_completion_tokens": 1, "max_tokens": 9000.0}, 9100),
        (COMPLETIONS, {"prompt": "x" * 400, "max_tokens": 10, "n": "128"}, 1380),
        (COMPLETIONS, {"prompt": "x" * 400, "max_tokens": 0, "echo": True}, 100),
        (COMPLETIONS, {"prompt": "x" * 400, "max_tokens": "many"}, 100 + DEFAULT_OUTPUT_LIMIT),
        ("/v1/responses", {"input": "x" * 400, "max_tokens": 1}, 100 + DEFAULT_OUTPUT_LIMIT),
        ("/v1/rerank", {"query": "x" * 400, "documents": ["y" * 396]}, 200),
    ],
)
def test_a_request_is_charged_with_the_most_that_it_may_cost(
    path: str, document: dict[str, object], tokens: int
) -> None:
    assert charged(path, **document) == tokens


def test_an_image_counts_as_tokens_and_not_as_the_bytes_of_its_base64() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 2**20}}
    content = [{"type": "text", "text": "What is it?"}, image]
    cost = request_cost(json.dumps({"messages": [{"role": "user", "content": content}]}).encode(), CHAT)
    assert MEDIA_TOKENS <= cost.prompt_tokens < MEDIA_TOKENS + 20


def test_the_services_own_limits_bound_the_charge() -> None:
    raw = {
        "metadata": {"namespace": "team", "name": "chat"},
        "spec": {"model": {"maxLength": 1000}, "engine": {"limits": {"outputTokens": 300}}},
    }
    service = service_from(raw)
    assert charged(COMPLETIONS, service, prompt="x" * 400, max_tokens=10**9) == 400
    assert charged(COMPLETIONS, service, prompt="x" * 3600) == 1000


def test_the_real_tokens_replace_the_charge() -> None:
    world = World()
    assert isinstance(world.ask(prompt="x" * 400, max_tokens=5000), Pick) and world.left() == 4900
    world.settle(output_tokens=40)
    assert world.left() == 10_000 - 140
    assert isinstance(world.ask(prompt="x" * 400, max_tokens=100), Pick)
    world.settle(output_tokens=400, prompt_tokens=250)  # more than was charged: the difference is taken too
    assert world.left() == 10_000 - 140 - 650


def test_an_answer_above_its_charge_is_a_debt_that_the_next_request_waits_for() -> None:
    world = World()
    assert isinstance(world.ask(prompt="", max_tokens=1), Pick)
    world.settle(output_tokens=30_000)
    refused = world.ask(prompt="", max_tokens=1)
    assert isinstance(refused, Refusal) and refused.code == RATE_LIMITED and refused.retry_after == 121


def test_a_stream_that_ends_early_is_settled_with_what_was_produced() -> None:
    world = World()
    for _ in range(50):  # this service's tokens have 200 bytes
        world.ask(prompt="", max_tokens=10)
        world.settle(output_tokens=10, body_bytes=2000)
    before = world.left()
    assert isinstance(world.ask(prompt="x" * 400, max_tokens=5000), Pick)
    world.settle(body_bytes=30 * 200)
    assert before - world.left() == 130
    before = world.left()
    world.ask(prompt="x" * 400, max_tokens=20)
    world.settle(body_bytes=10**6)  # no estimate is above what was charged
    assert before - world.left() == 120
    before = world.left()
    world.ask(prompt="", max_tokens=20)
    world.settle(code=0, body_bytes=0)  # the client left before the answer
    assert world.left() == before


@pytest.mark.parametrize(("code", "requests"), [(200, 9), (400, 9), (500, 9), (503, 10)])
def test_errors_cost_no_tokens_and_a_503_costs_nothing(code: int, requests: int) -> None:
    world = World(Service("team", "chat", "smol", (("a", 100),), limits=(RateLimit("x-tenant", 10, 10_000),)))
    world.ask(prompt="", max_tokens=100)
    world.settle(code=code, output_tokens=0)
    assert world.left() == 10_000 and world.left("requests", 10) == requests


def test_a_request_that_the_gateway_refuses_later_costs_nothing() -> None:
    world = World(Service("team", "chat", "smol", (("a", 100),), limits=(RateLimit("x-tenant", 10, 10_000),)), pods=())
    refused = world.ask(prompt="", max_tokens=100)
    assert isinstance(refused, Refusal) and refused.code == "no_ready_pod"
    assert world.left() == 10_000 and world.left("requests", 10) == 10
    assert len(world.picker.charges) == 0


def test_a_charge_whose_request_never_ends_is_forgotten() -> None:
    world = World()
    world.ask(prompt="", max_tokens=100)
    finish(world.picker.sweep(600.0))
    assert len(world.picker.charges) == 1
    finish(world.picker.sweep(10_000.0))
    assert len(world.picker.charges) == 0


def keys_of(text: str) -> api_keys.APIKey:
    return next(iter(api_keys.parse(text).all))


def test_a_flood_of_header_values_resets_no_api_key_and_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MAX_VALUES", 100)
    limits = RateLimits()
    key = keys_of("- {name: team-a, key: sk-0123456789abcdef, requestsPerMinute: 1}")
    assert isinstance(limits.take(SERVICE, {"x-tenant": "own"}, 1, 0.0, key), Charge)
    other = Service("team", "other", limits=(RateLimit("x-tenant", 1, 0),))
    limits.take(other, {"x-tenant": "victim"}, 1, 0.0)
    for number in range(1000):
        limits.take(SERVICE, {"x-tenant": f"{number}" + "x" * 5000}, 1, 0.0)
    assert sum(len(store) for store in limits.buckets.values.values()) == 100
    assert {len(name) for store in limits.buckets.values.values() for name in store} == {16}
    assert isinstance(limits.take(SERVICE, {}, 1, 0.0, key), Exceeded)  # the key's own allowance is as it was
    assert isinstance(limits.take(other, {"x-tenant": "victim"}, 1, 0.0), Exceeded)  # another service's as well


def test_gone_keys_and_services_are_forgotten() -> None:
    limits = RateLimits()
    key = keys_of("- {name: team-a, key: sk-0123456789abcdef, tokensPerMinute: 5}")
    limits.take(SERVICE, {"x-tenant": "a"}, 1, 0.0, key)
    limits.retain_keys([key])
    finish(limits.retain_services([SERVICE.key]))
    assert len(limits.buckets.keys) == 1 and limits.buckets.values
    limits.retain_keys([])
    finish(limits.retain_services([]))
    assert not limits.buckets.keys and not limits.buckets.values


def test_fifty_thousand_values_take_little_memory_however_long_they_are() -> None:
    limits = RateLimits()
    tracemalloc.start()
    try:
        for number in range(5000):
            limits.take(SERVICE, {"x-tenant": f"{number}" + "x" * 50_000}, 1, 0.0)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken * 10 < 32 * 2**20  # 50,000 of them
