"""Protects users from values that are well-formed and can never do what they say: each is refused by the name of its field,
with what is allowed. A stored object that has one keeps its pods and weights, and gets a condition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.rule_examples import spec

from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.spec.parse import Spec, SpecErrors, parse
from pagefleet_operator.domain.status.gateway_api import FallbackReading
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.status import Status, Weight

LATENCY = "rollout.guard.latency"


def ttft(confidence: str) -> dict[str, Any]:
    return {LATENCY: [{"signal": "ttft", "confidence": confidence}]}


# Python's $ matches before a last newline, an API server's does not: the operator is not to accept more.
CONFIDENCE = (
    "must be a percentage from 50% to 99.999%, with at most three decimals: at 100% no canary is ever rolled back"
)
SHARE, PART = "must be a percentage from 0% to 100%", "must be a percentage from 0% to below 100%"
HEADER = "spec.rollout.route.header"
NAME = "must be a name of letters, digits, ., _, /, :, @, + and -, with a letter or digit first"
REFUSED = [
    (ttft("100%"), f"spec.{LATENCY}[0].confidence", CONFIDENCE),
    (ttft("99.9999%"), f"spec.{LATENCY}[0].confidence", CONFIDENCE),
    (ttft("0%"), f"spec.{LATENCY}[0].confidence", CONFIDENCE),
    ({"scaling.target.freeKVPages": "150%"}, "spec.scaling.target.freeKVPages", PART),
    ({"scaling.target.freeKVPages": "100%"}, "spec.scaling.target.freeKVPages", PART),
    ({"rollout.guard.freePages": {"min": "101%"}}, "spec.rollout.guard.freePages.min", SHARE),
    ({"rollout.guard.errors": {"maxRate": "150%"}}, "spec.rollout.guard.errors.maxRate", SHARE),
    ({"rollout.steps": [{"mirror": "100.5%"}]}, "spec.rollout.steps[0].mirror", SHARE),
    ({"model.servedName": "my model"}, "spec.model.servedName", NAME),
    ({"model.servedName": "--port=1"}, "spec.model.servedName", NAME),
    ({"model.servedName": "a\n--port"}, "spec.model.servedName", NAME),
    ({"model.servedName": "model\n"}, "spec.model.servedName", NAME),
    ({"model.servedName": ""}, "spec.model.servedName", NAME),
    ({"engine.kvCache.pages": 1}, "spec.engine.kvCache.pages", "must be from 2 to"),
    ({"engine.kvCache.pages": 3}, "spec.engine.kvCache.pages", "must hold at least 64 tokens"),
    ({"engine.kvCache.pages": 1, "engine.kvCache.pageSize": 256}, "spec.engine.kvCache.pages", "must be from 2 to"),
    ({"rollout.route.header": {"x canary": "yes"}}, HEADER, "'x canary' is not a header name"),
    ({"rollout.route.header": {"x-canary": ""}}, HEADER, "'x-canary' needs a value"),
    (
        {"rollout.route.header": {"X-Pagefleet-Canary": "yes"}},
        HEADER,
        "'X-Pagefleet-Canary': the gateway removes headers",
    ),
    (
        {"rollout.route.stickyBy": "header/x-envoy-user"},
        "spec.rollout.route.stickyBy",
        "'x-envoy-user': the gateway removes",
    ),
    (
        {"rollout.route.header": {}, "rollout.steps": [{"preview": {}}]},
        "spec.rollout.steps",
        "preview needs spec.rollout.route",
    ),
]
ACCEPTED = [
    ttft("50%"),
    ttft("99.999%"),
    {"scaling.target.freeKVPages": "99.9%"},
    {"rollout.guard.freePages": {"min": "100%"}},
    {"rollout.guard.errors": {"maxRate": "100%"}},
    {"rollout.steps": [{"mirror": "100%"}]},
    {"model.servedName": "meta-llama/Llama-3.1-8B_v2:beta@main+lora"},
    {"engine.kvCache.pages": 4},
    {"engine.kvCache.pages": 2, "engine.kvCache.pageSize": 32},
    {"cost.perAcceleratorHour": 5e-324, "cost.ceilingPerHour": 1, "scaling.max": 1000},
    {"rollout.route": {"header": {"X-Canary": "yes"}, "stickyBy": "header/x-user"}, "rollout.steps": [{"preview": {}}]},
    {
        "rollout.route": {"header": {"x-pagefleet-canary": "yes"}, "stickyBy": "header/x-envoy-user"},
        "traffic": {"provider": "GatewayAPI", "gatewayAPI": {"parentRefs": [{"name": "edge"}]}},
    },
]


@pytest.mark.parametrize(("fields", "field", "words"), REFUSED, ids=str)
def test_a_value_that_can_never_work_is_refused_by_its_field(fields: dict[str, Any], field: str, words: str) -> None:
    parsed = parse(spec(fields))
    assert isinstance(parsed, SpecErrors)
    assert [error.field for error in parsed.errors] == [field]
    assert parsed.errors[0].message.startswith(words)


@pytest.mark.parametrize("fields", ACCEPTED, ids=str)
def test_the_nearest_value_that_works_is_accepted(fields: dict[str, Any]) -> None:
    assert isinstance(parse(spec(fields)), Spec)


@pytest.mark.parametrize(("fields", "field", "words"), REFUSED, ids=str)
def test_a_stored_object_with_such_a_value_keeps_its_weights_and_gets_a_condition(
    fields: dict[str, Any], field: str, words: str
) -> None:
    status = Status(stable="0a1b2c3d", traffic=(Weight("0a1b2c3d", 100),))
    plan = decide(Observation("team-a", "chat", "u", 2, spec(fields), status), 1000.0)
    [degraded] = [one for one in plan.status.conditions if one.type == "Degraded"]
    assert (degraded.status, degraded.reason) == ("True", "InvalidSpec")
    assert degraded.message.startswith(f"{field}: {words}")
    assert plan.status.traffic == status.traffic
    assert [event.reason for event in plan.events] == ["InvalidSpec"], "once, with the same words"


def test_a_stored_fallback_to_itself_gets_a_condition_that_names_the_field() -> None:
    own = spec({"traffic.fallback.service": "chat"})
    observation = Observation("team-a", "chat", "u", 2, own, Status())
    plan = decide(replace(observation, fallbacks=(FallbackReading("chat", exists=True, fallback="chat"),)), 1000.0)
    [condition] = [one for one in plan.status.conditions if one.type == "FallbackReady"]
    assert (condition.status, condition.reason) == ("False", "FallbackLoops")
    assert condition.message == "spec.traffic.fallback.service: must name another service than chat itself"
