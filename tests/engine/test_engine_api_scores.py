"""/v1/score and /v1/rerank: cosines of a model of embeddings, pooled as its checkpoint says, and yes beside no of a model that
judges; other models are refused by name. Against real engines.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine.api_process import NAME, Serving, make_model, serving

QUERY, DOCUMENTS = "where is it", ["it is there", "here", "it is there"]
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }};{% endfor %}"  # query, document


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(json.dumps(value))


@pytest.fixture(scope="module", params=["mean_tokens", "lasttoken", "cls_token"])
def embeds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, str]]:
    folder: Path = tmp_path_factory.mktemp("embeds")
    uri = make_model(folder / "model")
    write(
        folder / "model/1_Pooling/config.json", {f"pooling_mode_{request.param}": True, "word_embedding_dimension": 64}
    )
    flags = ("--max-model-len=2048", "--max-chunk-tokens=64", "--max-num-batched-tokens=64", "--max-num-seqs=16")
    with serving(uri, folder / "termination", *flags) as running:
        yield running, request.param


def test_scores_are_cosines_and_a_rerank_is_their_order(embeds: tuple[Serving, str]) -> None:
    served, _ = embeds
    data = served.answer("/v1/embeddings", {"model": NAME, "input": [QUERY, *DOCUMENTS]})["data"]
    query, *documents = [one["embedding"] for one in data]
    cosines = [sum(a * b for a, b in zip(query, one, strict=True)) for one in documents]
    scored = served.answer("/v1/score", {"model": NAME, "text_1": QUERY, "text_2": DOCUMENTS})
    assert [one["score"] for one in scored["data"]] == pytest.approx(cosines, abs=1e-5)
    ranked = served.answer("/rerank", {"model": NAME, "query": QUERY, "documents": DOCUMENTS, "top_n": 2})
    scores = [one["relevance_score"] for one in ranked["results"]]
    assert scores == sorted(scores, reverse=True) and len(scores) == 2
    assert scores == pytest.approx(sorted(cosines, reverse=True)[:2], abs=1e-5)
    assert all(one["document"]["text"] == DOCUMENTS[one["index"]] for one in ranked["results"])
    assert ranked["usage"]["total_tokens"] > 0


def test_texts_are_pooled_as_the_checkpoint_says(embeds: tuple[Serving, str]) -> None:
    """A causal model's first state depends on the first token only; the last one, and the mean, on all before it."""
    served, kind = embeds
    long = "a text of more than one chunk " * 6

    def vector(text: str) -> Any:
        return served.answer("/v1/embeddings", {"model": NAME, "input": text})["data"][0]["embedding"]

    assert (vector(long) == pytest.approx(vector("another"), abs=1e-4)) is (kind == "cls_token")
    assert (vector(long) == pytest.approx(vector("b" + long[1:]), abs=1e-4)) is False


@pytest.fixture(scope="module")
def judges(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("judges")
    uri = make_model(folder / "model")
    config = json.loads((folder / "model/config.json").read_text())
    write(folder / "model/config.json", {**config, "classifier_from_token": ["n", "y"]})
    write(folder / "model/tokenizer_config.json", {"chat_template": TEMPLATE + "{# query document #}"})
    with serving(uri, folder / "termination", "--max-model-len=2048") as running:
        yield running


def test_a_model_that_judges_scores_by_yes_beside_no(judges: Serving) -> None:
    def logprob(document: str, token: str) -> float:
        prompt = f"query: {QUERY};document: {document};{token}"
        asked = {"model": NAME, "prompt": prompt, "max_tokens": 1, "prompt_logprobs": 0, "add_special_tokens": False}
        (last,) = judges.answer("/v1/completions", asked)["choices"][0]["prompt_logprobs"][-1].values()
        return float(last["logprob"])

    expected = []
    for document in DOCUMENTS:
        yes, no = (math.exp(logprob(document, token)) for token in "yn")
        expected.append(yes / (yes + no))
    scored = judges.answer("/v1/score", {"model": NAME, "queries": [QUERY] * 3, "documents": DOCUMENTS})
    assert [one["score"] for one in scored["data"]] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/score", {"text_2": "b"}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["b"]}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": "b" * 2048}, "text_2"),
        ("/v1/score", {"queries": "a", "documents": "b" * 2048}, "documents"),
        ("/v1/score", {"queries": ["a", "b"], "documents": ["b"]}, "queries"),
        ("/v1/score", {"text_1": "a", "queries": "a", "text_2": "b"}, "text_1"),
        ("/v1/rerank", {"query": "a", "documents": ["b" * 2048]}, "documents"),
        ("/v1/rerank", {"query": "a"}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b", 3]}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "rank_fields": ["x"]}, "rank_fields"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(judges: Serving, path: str, body: dict[str, Any], param: str) -> None:
    reply = judges.post(path, {"model": NAME, **body})
    assert (reply.status, reply.error["param"]) == (400, param), reply.body


def test_a_model_that_gives_no_scores_says_so(tmp_path: Path) -> None:
    uri = make_model(tmp_path / "model")
    write(tmp_path / "model/1_Pooling/config.json", {"pooling_mode_max_tokens": True})
    with serving(uri, tmp_path / "termination") as served:
        for path, body in (("/v1/embeddings", {"input": "a"}), ("/v1/score", {"text_1": "a", "text_2": "b"})):
            reply = served.post(path, {"model": NAME, **body})
            assert (reply.status, reply.error["code"]) == (400, "unsupported_model")
            assert "pooling_mode_max_tokens" in reply.error["message"]
    (tmp_path / "model/1_Pooling/config.json").unlink()
    with serving(uri, tmp_path / "termination") as served:
        assert served.post("/v1/embeddings", {"model": NAME, "input": "a"}).status == 200
        reply = served.post("/v1/score", {"model": NAME, "text_1": "a", "text_2": "b"})
        assert (reply.status, reply.error["code"]) == (400, "unsupported_model")
