"""Protects a service that answers another one's requests: its own limits and the classes that it gives up apply to them, and what they
cost is charged once and given back."""

from __future__ import annotations

import random
from typing import Any

from pagefleet_contract.headers import BACKGROUND, PRIORITY_HEADER
from pagefleet_gateway.cluster.service import RateLimit, Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.limits.charges import Answer
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Request
from pagefleet_gateway.picking.picker import Picker
from pagefleet_gateway.picking.routing import Refusal

BATCH = {"x-class": "batch"}
BODY = b'{"model": "smol", "prompt": "hello", "max_tokens": 100}'


class Fleet:
    """A service without pods, and the one that answers in its place."""

    def __init__(self, own: tuple[RateLimit, ...] = (), **other: Any) -> None:
        self.state = State()
        self.picker = Picker(self.state, Ledger(), random.Random(7))
        pod = Pod("9", "s", "team", "small", "c", "10.0.0.9:8000")
        self.state.replace_pods([pod])
        self.state.confirm([pod])
        self.state.put_service(Service("team", "chat", "smol", (("a", 100),), fallback="small", limits=own))
        self.state.put_service(Service("team", "small", "tiny", (("c", 100),), **other))
        self.count = 0

    def ask(self, service: str = "chat", **headers: str) -> str:
        """The service that answers, else the refusal's code."""
        self.count += 1
        request = Request(f"r{self.count}", "POST", f"/team/{service}/v1/completions", headers, BODY)
        decision = self.picker.decide(request, 0.0)
        if isinstance(decision, Refusal):
            return decision.code
        return decision.fallback or f"team/{service}"

    def end(self, number: int, tokens: int) -> None:
        self.picker.charges.settle(f"r{number}", Answer(200, output_tokens=tokens, prompt_tokens=0))


def limit(requests: int = 0, tokens: int = 0) -> RateLimit:
    return RateLimit("user", requests, tokens)


def test_requests_that_fall_back_count_in_the_other_service_s_limits() -> None:
    """A client got past the limit of a service by asking another one, and used up what the limit keeps for others."""
    fleet = Fleet((limit(requests=100),), limits=(limit(requests=2),))
    assert [fleet.ask(user="ann") for _ in range(3)] == ["team/small", "team/small", "no_ready_pod"]
    assert fleet.ask("small", user="ann") == "rate_limit_exceeded"
    assert fleet.ask(user="bob") == "team/small"


def test_what_a_request_has_cost_is_charged_to_both_services() -> None:
    for own in ((), (limit(tokens=100_000),)):
        fleet = Fleet(own, limits=(limit(tokens=1000),))
        assert fleet.ask(user="ann") == "team/small"
        fleet.end(1, tokens=950)
        assert fleet.ask(user="ann") == "no_ready_pod", own
        assert len(fleet.picker.charges) == 0


def test_a_pick_that_is_refused_after_all_is_given_back() -> None:
    fleet = Fleet(limits=(limit(requests=1),))
    fleet.picker.held_class = lambda _: 0  # background work gives way to a request that waits
    assert fleet.ask(user="ann", **{PRIORITY_HEADER: BACKGROUND}) == "no_idle_capacity"
    assert fleet.ask(user="ann") == "team/small"


def test_a_class_that_the_other_service_gives_up_does_not_fall_back() -> None:
    classes: dict[str, Any] = {
        "priorities": ((("x-class", "live"),), (("x-class", "batch"),)),
        "priority_names": ("live", "batch"),
    }
    sheds: list[dict[str, Any]] = [{"shed": ("batch",)}, {"shed_for_slo": ("batch",)}]
    for shed in sheds:
        fleet = Fleet(**classes, **shed)
        assert fleet.ask(**BATCH) == "no_ready_pod"
        assert fleet.ask(**{"x-class": "live"}) == fleet.ask() == "team/small"


def test_without_limits_nothing_is_charged() -> None:
    fleet = Fleet()
    assert fleet.ask() == "team/small" and len(fleet.picker.charges) == 0
