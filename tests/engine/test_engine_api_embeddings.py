"""Embeddings and tokens over the engine's HTTP API: unit vectors in both encodings, texts to tokens and back, bad input
refused by name. Against a real engine.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support.engine.api_process import NAME, Serving, make_model, serving

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("embeddings")
    with serving(make_model(folder / "model"), folder / "termination", "--max-model-len=2048") as running:
        yield running


@pytest.mark.parametrize("given", ["text", ["text", "other"], [5, 6], [[5, 6], [7]]])
def test_embeddings_have_length_one_in_both_encodings(client: openai.OpenAI, served: Serving, given: Any) -> None:
    # The client asks for base64 and decodes it.
    answer = client.embeddings.create(model=NAME, input=given)
    plain = served.answer("/v1/embeddings", {"model": NAME, "input": given})
    several = isinstance(given, list) and isinstance(given[0], str | list)
    assert [one.index for one in answer.data] == list(range(len(given) if several else 1))
    for one, floats in zip(answer.data, plain["data"], strict=True):
        assert math.sqrt(sum(value * value for value in one.embedding)) == pytest.approx(1, abs=1e-5)
        assert one.embedding == pytest.approx(floats["embedding"], abs=1e-6)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    raw = served.answer("/v1/embeddings", {"model": NAME, "input": given, "encoding_format": "base64"})
    values = struct.unpack("<64f", base64.b64decode(raw["data"][0]["embedding"]))
    assert values == pytest.approx(plain["data"][0]["embedding"], abs=1e-6)


def test_an_embedding_does_not_depend_on_what_is_embedded_beside_it(served: Serving) -> None:
    long = "a longer text than one page " * 20
    alone = served.answer("/v1/embeddings", {"model": NAME, "input": long})["data"][0]["embedding"]
    beside = served.answer("/v1/embeddings", {"model": NAME, "input": ["x", long, long]})["data"]
    for one in beside[1:]:
        assert one["embedding"] == pytest.approx(alone, abs=1e-5)
    assert beside[0]["embedding"] != pytest.approx(alone, abs=0.1)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": ""}, "input"), ({"input": []}, "input"), ({"input": [[]]}, "input"), ({"dimensions": 5}, "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format"), ({"input": "a" * 3000}, "input"), ({"input": [9999]}, "input"),
        ({"n": 1}, "n"),
    ],
)  # fmt: skip
def test_a_bad_parameter_of_an_embedding_is_refused_by_name(
    served: Serving, change: dict[str, Any], param: str
) -> None:
    reply = served.post("/v1/embeddings", {"model": NAME, "input": "a", **change})
    assert (reply.status, reply.error["param"]) == (400, param), reply.body


def test_text_becomes_tokens_and_back(served: Serving) -> None:
    answer = served.answer("/tokenize", {"model": NAME, "prompt": "hi you", "return_token_strs": True})
    assert (answer["count"], answer["max_model_len"], answer["token_strs"]) == (6, 2048, ["h", "i", " ", "y", "o", "u"])
    assert served.answer("/detokenize", {"model": NAME, "tokens": answer["tokens"]}) == {"prompt": "hi you"}
    chat = served.answer("/tokenize", {"messages": HI})
    again = served.answer("/detokenize", {"tokens": chat["tokens"]})
    assert again["prompt"] == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    bare = served.answer("/tokenize", {"messages": HI, "add_generation_prompt": False})
    assert bare["count"] < chat["count"]
    for path, document, param in (
        ("/tokenize", {}, "prompt"), ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {"tokens": [1 << 20]}, "tokens"), ("/detokenize", {"tokens": "5"}, "tokens"),
    ):  # fmt: skip
        reply = served.post(path, document)
        assert (reply.status, reply.error["param"]) == (400, param)
