"""The sampling values of a checkpoint's generation_config.json, as each endpoint's clients meet them, with a real engine.

Protects that a request which does not name a field has the file's value on every endpoint that generates, that one which names
its fields is answered as without the file, that `--generation-config=vllm` leaves the values out, and that a wrong value
ends the start by its name.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine.api_process import NAME, Serving, command, free_port, make_model, serving

# The most likely token only: the answers are those of temperature 0, which requests without the file do not have.
GREEDY = {"temperature": 1.8, "top_k": 1, "top_p": 0.9, "eos_token_id": 2}
HI = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hello", "max_tokens": 24},
    "/v1/chat/completions": {"messages": HI, "max_tokens": 24},
    "/v1/responses": {"input": "hello", "max_output_tokens": 24},
    "/v1/messages": {"messages": HI, "max_tokens": 24},
}
NAMED = {"temperature": 1.5, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}


def text(served: Serving, path: str, **more: Any) -> str:
    document = served.answer(path, {"model": NAME, "ignore_eos": True, **BODIES[path], **more})
    match path:
        case "/v1/completions":
            return str(document["choices"][0]["text"])
        case "/v1/chat/completions":
            return str(document["choices"][0]["message"]["content"])
        case "/v1/responses":
            return str(document["output"][0]["content"][0]["text"])
        case _:
            return str(document["content"][0]["text"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("generation") / "model"
    uri = make_model(folder)
    (folder / "generation_config.json").write_text(json.dumps(GREEDY))
    return uri


@pytest.fixture(scope="module")
def served(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(model, tmp_path_factory.mktemp("auto") / "termination") as running:
        yield running


@pytest.fixture(scope="module")
def plain(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(model, tmp_path_factory.mktemp("vllm") / "termination", "--generation-config=vllm") as running:
        yield running


@pytest.mark.parametrize("path", BODIES)
def test_a_request_has_the_files_values_where_it_names_none(served: Serving, plain: Serving, path: str) -> None:
    greedy = text(plain, path, temperature=0)
    assert text(served, path, seed=5) == text(served, path, seed=6) == greedy
    assert len({text(plain, path, seed=seed) for seed in (5, 6)} - {greedy}) == 2


@pytest.mark.parametrize("path", BODIES)
def test_a_request_that_names_its_fields_is_answered_as_without_the_file(
    served: Serving, plain: Serving, path: str
) -> None:
    assert text(served, path, seed=5, **NAMED) == text(plain, path, seed=5, **NAMED) != text(served, path)


def test_a_response_repeats_the_values_that_it_was_made_with(served: Serving) -> None:
    made = served.answer("/v1/responses", {"model": NAME, "input": "hello", "max_output_tokens": 1, "top_p": 0.5})
    assert (made["temperature"], made["top_p"]) == (GREEDY["temperature"], 0.5)


@pytest.mark.parametrize(
    ("written", "named"),
    [('{"temperature": 7}', "temperature must be"), ("[]", "JSON object"), ("{", "generation_config.json of")],
)
def test_a_wrong_file_ends_the_start_by_name(tmp_path: Path, written: str, named: str) -> None:
    uri, log = make_model(tmp_path / "model"), tmp_path / "termination"
    (tmp_path / "model" / "generation_config.json").write_text(written)
    ended = subprocess.run(
        command(uri, free_port()),
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PAGEFLEET_TERMINATION_LOG": str(log)},
    )
    report = json.loads(log.read_text())
    assert (ended.returncode, report["field"]) == (78, "spec.model.source"), ended.stderr
    assert named in report["message"] and "generation_config.json" in report["message"]
    assert "Traceback" not in ended.stderr
