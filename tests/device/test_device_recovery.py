"""Protects a device's engine from a step that raises: what had begun ends with an error, what waits is computed. A lost
device, or another rank that waits, still ends the engine."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from support.engine.device_engine import device_engine, prompts, saved

from pagefleet_engine.core.requests import EngineRequest, SamplingParams
from pagefleet_engine.runner.device.engine import DeviceEngine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("recovery") / "model")[0]


def requests() -> list[EngineRequest]:
    """Return greedy requests, and two whose tokens the host helps to choose."""
    options: list[dict[str, Any]] = [{}, {}, {"logit_bias": ((7, 3.0),)}, {}, {"logprobs": 1}, {}, {}]
    return [
        EngineRequest(f"r{index}", tuple(prompt), SamplingParams(8 + index, ignore_eos=True, **own), 0.0)
        for index, (prompt, own) in enumerate(zip(prompts(len(options)), options, strict=True))
    ]


def served(engine: DeviceEngine, fault: tuple[int, Any] | None = None) -> dict[str, tuple[list[int], str]]:
    """Return each request's tokens and the reason of its end. `fault` is a step and a function to call before it."""
    for request in requests():
        engine.add(request)
    tokens: defaultdict[str, list[int]] = defaultdict(list)
    ends: dict[str, str] = {}
    for step in range(1000):
        if not engine.has_work():
            break
        if fault is not None and step == fault[0]:
            fault[1]()
        for output in engine.step(0.0):
            assert output.request_id not in ends
            tokens[output.request_id] += output.token_ids
            if output.finish_reason is not None:
                ends[output.request_id] = output.finish_reason
        engine.check()
    assert engine.stats().pages_free + engine.stats().pages_cached == engine.stats().pages_total
    return {name: (tokens[name], end) for name, end in ends.items()}


@pytest.mark.parametrize("place", ["_launch", "_settle", "_described", "_together"])
@pytest.mark.parametrize("step", [0, 1, 3])
def test_a_step_that_raises_ends_what_had_begun(
    model: str, monkeypatch: pytest.MonkeyPatch, place: str, step: int
) -> None:
    engine = device_engine(model, max_num_seqs=3)
    expected = served(engine)
    assert {end for _, end in expected.values()} == {"length"}

    def break_it() -> None:
        def once(*_: Any, **__: Any) -> None:
            monkeypatch.undo()
            raise RuntimeError("as asked for")

        monkeypatch.setattr(engine, place, once)

    answers = served(engine, (step, break_it))
    failed = {name for name, (_, end) in answers.items() if end == "error"}
    assert answers.keys() == expected.keys(), "a request got no end"
    assert failed and failed < expected.keys()
    assert {name: answers[name] for name in answers.keys() - failed} == {
        name: expected[name] for name in expected.keys() - failed
    }
    assert all(expected[name][0][: len(answers[name][0])] == answers[name][0] for name in failed)
    assert served(engine) == expected


def test_a_token_that_is_none_ends_its_request_alone(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = device_engine(model)
    expected = served(engine)
    real, calls = engine._scheduler.settle, 0

    def settle(tokens: list[int]) -> Any:
        nonlocal calls
        calls += 1
        return real([10**6, *tokens[1:]] if calls == 1 else tokens)

    monkeypatch.setattr(engine._scheduler, "settle", settle)
    answers = served(engine)
    [failed] = [name for name, (_, end) in answers.items() if end == "error"]
    assert {name: one for name, one in answers.items() if name != failed} == {
        name: one for name, one in expected.items() if name != failed
    }


@pytest.mark.parametrize("lost", ["device", "ranks"])
def test_what_cannot_go_on_ends_the_engine(model: str, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    engine = device_engine(model)
    engine.add(requests()[0])

    def fail(*_: Any) -> None:
        raise ValueError("as asked for")

    monkeypatch.setattr(engine, "_launch", fail)
    if lost == "device":
        monkeypatch.setattr(type(engine._rank), "usable", False)
    else:
        engine._rank.shard = type(engine._rank.shard)(rank=0, size=2)
    with pytest.raises(ValueError, match="as asked for"):
        engine.step(0.0)


def test_a_device_without_faults_is_usable(model: str) -> None:
    assert device_engine(model)._rank.usable
