"""Protects fields of a request that others must not switch off: log probabilities beside tools, min_tokens beside a grammar; and
the memory that log probabilities of prompts may take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine.api_process import NAME, Serving, make_model, serving

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
HIDDEN = ("<|im_start|>", "<|endoftext|>", "<|im_end|>")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("side-by-side")
    with serving(make_model(folder / "model"), folder / "termination", "--max-model-len=2048") as running:
        yield running


def answered(served: Serving, body: dict[str, Any]) -> dict[str, Any]:
    """The text part of a response with its log probabilities, streamed or whole."""
    reply = served.post("/v1/responses", body)
    assert reply.status == 200, reply.body
    if not body["stream"]:
        part: dict[str, Any] = json.loads(reply.body)["output"][0]["content"][0]
        return part
    events = [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: ")]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    streamed = [one for event in deltas for one in event["logprobs"]]
    assert streamed == events[-1]["response"]["output"][0]["content"][0]["logprobs"]
    return {"text": "".join(event["delta"] for event in deltas), "logprobs": streamed}


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_response_has_the_log_probabilities_of_all_its_text(served: Serving, tools: bool, stream: bool) -> None:
    for seed in range(8):
        body: dict[str, Any] = {
            "model": NAME, "input": "hi", "max_output_tokens": 60, "temperature": 1.0, "seed": seed, "top_logprobs": 1,
            "ignore_eos": True, "stream": stream, "logit_bias": {"97": 3, "30": 3},
        }  # fmt: skip
        part = answered(served, body | ({"tools": [TOOL]} if tools else {}))
        said = "".join(one["token"] for one in part["logprobs"])
        for special in HIDDEN:
            said = said.replace(special, "")
        assert said == part["text"]


def test_min_tokens_count_beside_a_grammar(served: Serving) -> None:
    body = {"model": NAME, "prompt": "go", "guided_regex": "[ab]{1,200}", "min_tokens": 30, "max_tokens": 40}
    for seed in range(40):
        answer = served.answer("/v1/completions", body | {"temperature": 1.0, "seed": seed})
        assert answer["usage"]["completion_tokens"] >= 30


def test_log_probabilities_of_prompts_are_bounded_for_a_body(served: Serving) -> None:
    body = {"model": NAME, "prompt": [[5] * 2000] * 7, "max_tokens": 1, "prompt_logprobs": 20}
    refused = served.post("/v1/completions", body)
    error = json.loads(refused.body)["error"]
    assert (refused.status, error["param"]) == (400, "prompt_logprobs"), refused.body
    assert "294000" in error["message"] and "262144" in error["message"]
    assert served.post("/v1/completions", body | {"prompt_logprobs": 1}).status == 200
