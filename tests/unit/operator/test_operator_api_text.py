"""Protects what the operator sends to the API server: server-side apply is read as YAML, so whatever a user may write into a
spec must read back the same as JSON and as YAML."""

from __future__ import annotations

import json
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_operator.kube.client import written

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_what_is_sent_reads_back_as_json_and_as_yaml(body: dict[str, Any]) -> None:
    text = written(body)
    assert json.loads(text) == body
    assert yaml.safe_load(text) == body


def test_a_llama_is_no_pair_of_escapes() -> None:
    assert written({"args": ["🦙\x7f"]}) == '{"args": ["🦙\\u007f"]}'.encode()
    assert json.loads(written({"broken": "\ud83e"})) == {"broken": "\ud83e"}
