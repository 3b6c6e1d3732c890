"""Every parameter of a request is understood or refused by name; nothing is silently ignored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from pagefleet_engine.api.errors import ApiError
from pagefleet_engine.api.parameters import CHAT, COMPLETION, NOT_SUPPORTED, Parameters, parse

JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text(max_size=8),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = sorted(CHAT | COMPLETION | set(NOT_SUPPORTED))


def test_a_full_request_is_read() -> None:
    body = {
        "model": "m", "prompt": ["hi"], "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": -1, "min_p": 0.1,
        "seed": -3, "stop": "x", "stop_token_ids": [1], "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True}, "user": "u", "n": 1,
    }  # fmt: skip
    assert parse(body, chat=False) == Parameters(
        model="m", prompt="hi", max_tokens=5, temperature=0.5, top_p=0.9, top_k=0, min_p=0.1, seed=-3, stop=("x",),
        stop_token_ids=(1,), ignore_eos=True, stream=True, include_usage=True,
    )  # fmt: skip


def test_text_parts_are_joined_and_developer_means_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    read = parse({"model": "m", "messages": [{"role": "developer", "content": parts}]}, chat=True)
    assert read.messages == ({"role": "system", "content": "ab"},)


def test_the_newer_name_of_the_token_limit_wins_and_names_itself() -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "max_completion_tokens": 4}
    read = parse(asked, chat=True)
    assert (read.max_tokens, read.max_tokens_name) == (4, "max_completion_tokens")


@pytest.mark.parametrize("name", sorted(NOT_SUPPORTED))
@pytest.mark.parametrize("chat", [True, False])
def test_a_parameter_without_behaviour_is_refused_unless_it_is_off(name: str, chat: bool) -> None:
    base: dict[str, Any] = {"model": "m"} | (
        {"messages": [{"role": "user", "content": "x"}]} if chat else {"prompt": "x"}
    )
    for unused in NOT_SUPPORTED[name]:
        parse({**base, name: unused}, chat=chat)
    with pytest.raises(ApiError) as refused:
        parse({**base, name: "something"}, chat=chat)
    assert (refused.value.status, refused.value.param) == (400, name)


@settings(max_examples=400, deadline=None)
@given(some.dictionaries(some.sampled_from(NAMES) | some.text(max_size=5), JSON, max_size=5), some.booleans())
def test_any_json_is_read_or_refused_with_400(body: dict[str, Any], chat: bool) -> None:
    try:
        parse({"model": "m", "prompt": "x"} | body if not chat else body, chat=chat)
    except ApiError as error:
        assert error.status == 400
        assert error.param is not None
        assert len(error.message) < 400
