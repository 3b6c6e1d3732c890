"""Protects what the pieces share and cannot import from each other: buckets, flags, metric names, ports, CEL rules."""

from __future__ import annotations

import math
import shlex
from typing import Any

import celpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pagefleet_gateway.sketch as theirs
from pagefleet_engine.api.metrics import Metrics
from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.main import configure
from pagefleet_local.demo.stage import sample
from pagefleet_operator.domain import sketch as ours
from pagefleet_operator.domain.build.deployment import deployment
from pagefleet_operator.domain.build.names import Child
from pagefleet_operator.domain.revision import snapshot
from pagefleet_operator.domain.rules import RULES
from pagefleet_operator.domain.spec import Spec, parse
from pagefleet_operator.domain.support import OWNED_FLAGS
from pagefleet_operator.signals.engine import GAUGES


@given(st.floats(1e-6, 100))
def test_operator_and_gateway_sort_latencies_alike(seconds: float) -> None:
    assert abs(ours.index(seconds) - theirs.bucket_of(seconds)) == 0 or math.isclose(
        ours.upper(min(ours.index(seconds), theirs.bucket_of(seconds))), seconds, rel_tol=1e-9
    )


def test_the_engine_understands_the_flags_that_the_operator_writes() -> None:
    spec = sample()["spec"]
    spec["engine"]["kvCache"]["memoryFraction"] = 0.5
    parsed = parse(spec)
    assert isinstance(parsed, Spec)
    child = Child("team-a", "chat", "uid", "0" * 8, snapshot(parsed.raw))
    container = deployment(child, 1)["spec"]["template"]["spec"]["containers"][0]
    config = configure(shlex.split(" ".join(container["args"])))
    assert (config.served_model_name, config.port) == ("smollm2", 8000)
    assert (config.engine.quantization, config.engine.num_pages, config.engine.page_size) == ("int8", 112, 16)
    assert (config.engine.max_model_len, config.limits.prompt_tokens, config.limits.queued) == (2048, 1024, 128)
    written = {argument.split("=")[0] for argument in container["args"] if argument.startswith("--")}
    assert written - {"--max-num-seqs"} == set(OWNED_FLAGS)


def test_the_engine_exposes_what_the_operator_reads() -> None:
    text = Metrics("m", EngineConfig("file:///m")).text().decode()
    for name in GAUGES:
        assert f'{name}{{model_name="m"}}' in text


STEP = st.fixed_dictionaries(
    {},
    optional={
        "weight": st.integers(1, 100),
        "hold": st.just("1m"),
        "pause": st.just({"duration": "1m"}),
        "mirror": st.just("10%"),
    },
)
PARTS: dict[tuple[str, ...], st.SearchStrategy[Any]] = {
    ("scaling",): st.fixed_dictionaries({"min": st.integers(0, 5), "max": st.integers(1, 5)}),
    ("rollout",): st.fixed_dictionaries({}, optional={"steps": st.lists(STEP, max_size=4)}),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.message)
def test_cel_and_python_agree(rule: Any) -> None:
    environment = celpy.Environment()
    program = environment.program(environment.compile(rule.cel))

    @settings(max_examples=60, deadline=None)
    @given(PARTS[rule.at])
    def agree(part: dict[str, Any]) -> None:
        assert bool(program.evaluate({"self": celpy.json_to_cel(part)})) == rule.holds(part)

    agree()
