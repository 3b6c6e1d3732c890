"""Protects that a cap of new tokens changes nothing of a request's body but its limits, and an engine's priority nothing but
`priority`, and another model's name nothing but `model`, alone and together, whatever the body holds: also where a prompt
or a tool's schema has fields of the same names, where the limit is null, is there twice or is missing, and where no JSON comes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_gateway.bodies.edits import capped, edited, prioritized, renamed

LIMITS = ("max_tokens", "max_completion_tokens")
CHAT, RESPONSES = "/team/chat/v1/chat/completions", "/v1/responses?x=1"
CAP = 64

TEXTS = st.sampled_from(['{"max_tokens": 500}', '"max_tokens":500', "max_tokens", 'a"b', "ä;1 2 3", ""]) | st.text(
    max_size=20
)
VALUES = st.recursive(
    st.integers(-5, 1000) | st.none() | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*LIMITS, "min_tokens", "a"]), inner, max_size=3)
    ),
    max_leaves=8,
)
NUMBERS = st.none() | st.integers(0, 1000)
BODIES = st.fixed_dictionaries(
    {"model": st.just("smol"), "messages": VALUES},
    optional={**dict.fromkeys((*LIMITS, "min_tokens"), NUMBERS), "tools": VALUES, "metadata": VALUES},
).flatmap(lambda body: st.permutations(list(body.items())).map(dict))


def after(body: bytes, path: str = CHAT, cap: int = CAP) -> Any:
    return json.loads(edited(body, capped(body, path, cap)))


@given(BODIES, st.sampled_from([None, 1]), st.booleans())
def test_only_limits_above_the_cap_change(body: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    found = after(json.dumps(body, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"))
    asked = [body[name] for name in LIMITS if body.get(name) is not None]
    for name in LIMITS:
        if body.get(name) is not None:
            assert found[name] == min(body[name], CAP)
    if not asked:
        assert [found[name] for name in LIMITS if found.get(name) is not None] == [CAP]
    if body.get("min_tokens") is not None:
        assert found["min_tokens"] == min(body["min_tokens"], CAP)
    names = {*LIMITS, "min_tokens"}
    assert {k: v for k, v in found.items() if k not in names} == {k: v for k, v in body.items() if k not in names}


@given(BODIES, NUMBERS | st.just(-7), st.integers(-16, 16), st.sampled_from([None, 1]))
def test_the_engines_priority_is_the_gateways_and_all_else_stays(
    body: dict[str, Any], own: int | None, priority: int, indent: int | None
) -> None:
    asked = {"priority": own, **body} if own is not None else body
    text = json.dumps(asked, indent=indent).encode()
    found = json.loads(edited(text, prioritized(text, CHAT, priority)))
    assert found.get("priority", 0) == priority
    assert {k: v for k, v in found.items() if k != "priority"} == body
    both = json.loads(edited(text, prioritized(text, CHAT, priority) + capped(text, CHAT, CAP)))
    assert both == after(text) | ({"priority": found["priority"]} if "priority" in found else {})
    assert prioritized(text, "/v1/embeddings", priority) == ()


@given(
    BODIES,
    st.text(max_size=20) | st.none(),
    st.text(min_size=1, max_size=20),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_only_the_models_name_changes(
    body: dict[str, Any], own: str | None, model: str, indent: int | None, ascii_only: bool
) -> None:
    asked = {**body, "model": own, "messages": [body["messages"], {"model": own}]}
    text = json.dumps(asked, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    found = json.loads(renamed(text, model))
    assert found == {**asked, "model": model}
    without = {name: value for name, value in asked.items() if name != "model"}
    assert json.loads(renamed(json.dumps(without).encode(), model)) == {**without, "model": model}


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"model"', b"\xff{}"])
def test_a_body_that_is_no_object_keeps_its_model(body: bytes) -> None:
    assert renamed(body, "other") == body


@given(st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_what_is_no_object_stays_as_it_is(body: bytes) -> None:
    edits = capped(body, CHAT, CAP)
    if edits:
        assert isinstance(json.loads(body), dict)
        json.loads(edited(body, edits))


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        (b'{"max_tokens": 500, "model": "a", "max_tokens": 400}', {"max_tokens": CAP}),
        (b'{"max\\u005ftokens": 500, "model": "a"}', {"max_tokens": CAP}),
        (b'{"max_tokens": 5e2, "model": "a"}', {"max_tokens": CAP}),
        (b' \n{"model": "a"}', {"max_tokens": CAP}),
        (b'{"max_tokens": "many"}', {"max_tokens": "many"}),
        (b'{"max_tokens": 3}', {"max_tokens": 3}),
    ],
)
def test_unusual_bodies(body: bytes, limit: dict[str, object]) -> None:
    found = after(body)
    assert {name: found.get(name) for name in limit} == limit


def test_each_api_has_its_own_name_and_other_paths_have_none() -> None:
    assert after(b'{"max_output_tokens": 900}', RESPONSES) == {"max_output_tokens": CAP}
    assert after(b'{"max_tokens": 900}', "/v1/messages") == {"max_tokens": CAP}
    for path in ("/v1/embeddings", "/v1/messages/count_tokens", "/v1/responses/input_tokens", "/v1/cache/pin"):
        assert capped(b'{"max_tokens": 900}', path, CAP) == ()
