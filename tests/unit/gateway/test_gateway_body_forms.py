"""Protects priorities and caps of tokens from the ways in which a client may write its body, and the picker from large bodies."""

from __future__ import annotations

import json
import random
import time

import msgspec
import pytest
from pydantic import BaseModel

from pagefleet_contract import engine_metrics
from pagefleet_gateway.bodies.edits import capped, edited, prioritized
from pagefleet_gateway.cluster.engines import Engine
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.picker import Picker

PATH = "/team/chat/v1/chat/completions"
BODY = '{"model": "m", "messages": [], "priority": -1000, "max_tokens": 5000%s}'


class VLLM(BaseModel, extra="allow"):
    """As vLLM's OpenAIBaseModel reads a body that starlette has read by `json.loads`."""

    max_tokens: int | None = None
    priority: int = 0


BODIES = {
    "plain": (BODY % "").encode(), "NaN": (BODY % ', "x": NaN').encode(), "utf-16": (BODY % "").encode("utf-16"),
    "utf-32": (BODY % "").encode("utf-32"), "bom": (BODY % "").encode("utf-8-sig"),
    "surrogate": (BODY % ', "user": "\\ud800"').encode(), "text": (BODY % "").replace("5000", '"5000"').encode(),
    "odd text": (BODY % "").replace("5000", '" 5_000.0"').encode(),
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_no_body_brings_its_own_priority_or_more_tokens_to_the_engine(body: bytes) -> None:
    state = State()
    classes = ((("x-tier", "live"),),)
    state.put_service(Service("team", "chat", "m", (("a", 100),), priorities=classes, slo_output_tokens=100))
    pod = Pod("1", "p", "team", "chat", "a", "10.0.0.1:8000", engine=Engine(priority=engine_metrics.LOWER_FIRST))
    state.put_pod(pod)
    state.confirm([pod])
    decision = Picker(state, Ledger(), random.Random(1)).decide(Request("1", "POST", PATH, {}, body), 0.0)
    if isinstance(decision, Pick):
        try:
            found = VLLM.model_validate(json.loads(edited(body, decision.edits)))
        except ValueError:
            return  # the engine refuses it
        assert found.priority == 0 and found.max_tokens is not None and found.max_tokens <= 100
    else:
        assert decision.status == 400


@pytest.mark.parametrize("inner", [b'"priority":0,', b'"max_tokens":9,"min_tokens":9,"max_completion_tokens":9,', b""])
def test_a_body_of_4_mib_is_changed_in_some_tens_of_its_decodings(inner: bytes) -> None:
    size = 4 * 1024 * 1024 - 300
    head = b'{"priority":7,"max_tokens":5000,"max_completion_tokens":5000,"min_tokens":4000,'
    nested = b'"metadata":{' + inner * (size // max(1, len(inner))) + b'"a":1}}'
    body = head + (nested if inner else b'"prompt":"' + b"a" * size + b'"}')
    decoding, changing = [], []
    for _ in range(5):
        began = time.process_time()
        msgspec.json.decode(body, type=msgspec.Raw)
        between = time.process_time()
        edits = prioritized(body, PATH, 5) + capped(body, PATH, 100)
        decoding.append(between - began)
        changing.append(time.process_time() - between)
    changed = json.loads(edited(body, edits))
    fields = [changed[name] for name in ("priority", "max_tokens", "max_completion_tokens", "min_tokens")]
    assert fields == [5, 100, 100, 100]
    assert min(changing) < 80 * min(decoding), (min(changing), min(decoding))
