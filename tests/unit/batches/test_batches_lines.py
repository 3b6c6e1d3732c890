"""Protects that an input file is refused with the number of the line and the name of the field, and never sent in part."""

from __future__ import annotations

import json

import pytest

from pagefleet_batches.jobs.lines import MAX_PROBLEMS, check, parse

ENDPOINT = "/v1/chat/completions"
GOOD = {"custom_id": "a", "method": "POST", "url": ENDPOINT, "body": {"model": "m", "messages": []}}


def text(**fields: object) -> bytes:
    return json.dumps({name: value for name, value in (GOOD | fields).items() if value is not ...}).encode() + b"\n"


@pytest.mark.parametrize(
    ("line", "code", "param"),
    [
        (b"{\n", "invalid_json_line", None),
        (b"[1]\n", "invalid_json_line", None),
        (b"\xff\xfe\n", "invalid_json_line", None),
        (b"[" * 100_000, "invalid_json_line", None),
        (text(custom_id=...), "missing_required_parameter", "custom_id"),
        (text(method=...), "missing_required_parameter", "method"),
        (text(body=...), "missing_required_parameter", "body"),
        (text(priority=1), "unknown_parameter", "priority"),
        (text(custom_id=""), "invalid_custom_id", "custom_id"),
        (text(custom_id=7), "invalid_custom_id", "custom_id"),
        (text(custom_id="x" * 513), "invalid_custom_id", "custom_id"),
        (text(method="GET"), "invalid_method", "method"),
        (text(url="/v1/embeddings"), "invalid_url", "url"),
        (text(body=[]), "invalid_body", "body"),
        (text(body={"model": "m"}).replace(b'"model"', b'"\xff":1,"model"'), "invalid_body", "body"),
        (text(body={"messages": []}), "invalid_model", "body.model"),
        (text(body={"model": 3}), "invalid_model", "body.model"),
        (text(body={"model": "m", "stream": True}), "invalid_stream", "body.stream"),
        (text(body={"model": "m", "background": True}), "invalid_background", "body.background"),
        (text(body={"model": "m", "prompt": "x" * 3000}), "line_too_large", None),
    ],
)
def test_a_wrong_line_names_its_number_and_field(line: bytes, code: str, param: str | None) -> None:
    found = check([text(custom_id="first"), b"\n", line], ENDPOINT, 10, 3000 if len(line) < 99_999 else 200_000)
    (problem,) = found.problems
    assert (problem.line, problem.code, problem.param) == (3, code, param)
    if param:
        assert f"`{param}`" in problem.message


def test_ids_are_unique_and_the_model_is_one() -> None:
    found = check([text(), text(), text(custom_id="b", body={"model": "n"})], ENDPOINT, 10, 1000)
    assert [(one.line, one.code) for one in found.problems] == [(2, "duplicate_custom_id"), (3, "mismatched_model")]


def test_an_empty_file_and_one_with_too_many_lines_are_refused() -> None:
    assert [one.code for one in check([b"\n", b"  \n"], ENDPOINT, 10, 1000).problems] == ["empty_file"]
    many = [text(custom_id=str(number)) for number in range(4)]
    (problem,) = check(many, ENDPOINT, 3, 1000).problems
    assert (problem.code, problem.line) == ("too_many_lines", 4) and "3 lines" in problem.message
    assert not check(many, ENDPOINT, 4, 1000).problems


def test_a_wrong_file_is_not_read_for_ever() -> None:
    assert len(check([b"x\n"] * 1000, ENDPOINT, 10_000, 1000).problems) == MAX_PROBLEMS


def test_a_body_is_kept_as_its_client_wrote_it() -> None:
    body = b'{"model":"m","temperature":1e-40,"seed":18446744073709551615,"text":"\\u00e9"}'
    line = parse(
        1, b'{"custom_id":"a","method":"POST","url":"/v1/responses","body":' + body + b"}", "/v1/responses", 999
    )
    assert line.body == body and line.model == "m"
