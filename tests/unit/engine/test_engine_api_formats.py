"""Protects which grammar a request's fields mean, and that each bound and conflict is refused by the field's name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from pagefleet_engine.api.base.errors import ApiError
from pagefleet_engine.api.constrained.formats import FIELDS, Asked, read, schema_text
from pagefleet_engine.core.requests import Grammar

SCHEMA = {"type": "object", "properties": {"é": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}}
TEXT = json.dumps(SCHEMA, ensure_ascii=False)
NAMED = {"name": "n", "schema": SCHEMA, "strict": True}
JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=8),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({}, None),
        (dict.fromkeys(FIELDS), None),
        ({"response_format": {"type": "text"}}, None),
        ({"structured_outputs": {"json_object": False}}, None),
        ({"response_format": {"type": "json_object"}}, ("json_object", "", "response_format")),
        (
            {"response_format": {"type": "json_schema", "json_schema": NAMED}},
            ("json_schema", TEXT, "response_format.json_schema.schema"),
        ),
        ({"guided_json": SCHEMA}, ("json_schema", TEXT, "guided_json")),
        ({"guided_json": json.dumps(SCHEMA)}, ("json_schema", TEXT, "guided_json")),
        ({"guided_regex": "a+"}, ("regex", "a+", "guided_regex")),
        ({"guided_choice": ["a", "é"]}, ("choice", '["a", "é"]', "guided_choice")),
        ({"guided_grammar": "start: x"}, ("grammar", "start: x", "guided_grammar")),
        ({"structured_outputs": {"json": SCHEMA}}, ("json_schema", TEXT, "structured_outputs.json")),
        ({"structured_outputs": {"regex": "a", "json": None}}, ("regex", "a", "structured_outputs.regex")),
        ({"structured_outputs": {"json_object": True}}, ("json_object", "", "structured_outputs.json_object")),
        ({"guided_regex": "a", "response_format": {"type": "text"}}, ("regex", "a", "guided_regex")),
    ],
)
def test_what_the_fields_mean(body: dict[str, Any], asked: tuple[str, str, str] | None) -> None:
    assert read(body) == (Asked(Grammar(asked[0], asked[1]), asked[2]) if asked else None)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": ["text"]}}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {**NAMED, "strict": 1}}},
            "response_format.json_schema.strict",
        ),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[" * 9000}, "guided_json"),
        ({"guided_json": nested(64)}, "guided_json"),
        ({"guided_json": nested(5000)}, "guided_json"),
        ({"guided_json": {"title": "x" * (64 << 10)}}, "guided_json"),
        ({"guided_json": {"const": "\ud800"}}, "guided_json"),
        ({"guided_json": {"const": float("nan")}}, "guided_json"),
        ({"guided_json": {"items": [{"$ref": "https://example.com/schema"}]}}, "guided_json"),
        ({"guided_regex": "a" * 4097}, "guided_regex"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_choice": ["a"] * 257}, "guided_choice"),
        ({"guided_grammar": 3}, "guided_grammar"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"structured_outputs": {"regex": "a"}, "guided_choice": ["a"]}, "structured_outputs"),
    ],
)
def test_what_is_refused_names_its_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(body)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert param.split(".")[0] in refused.value.message


def test_the_bounds_themselves_are_allowed() -> None:
    assert read({"guided_json": nested(63)})
    assert read({"guided_regex": "a" * 4096})
    assert read({"guided_choice": ["a"] * 256})
    text = schema_text({"title": "x" * ((64 << 10) - len('{"title": ""}'))}, "here")
    assert len(text) == 64 << 10


@settings(max_examples=300)
@given(some.dictionaries(some.sampled_from(FIELDS), JSON, max_size=2))
def test_any_json_is_read_or_refused_with_400(body: dict[str, Any]) -> None:
    try:
        read(body)
    except ApiError as error:
        assert error.status == 400
        assert error.param
        assert len(error.message) < 400
