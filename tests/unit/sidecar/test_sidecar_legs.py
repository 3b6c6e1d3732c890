"""Protects the bodies of the two legs of a request: which requests have a prefill leg, what a prefill pod is asked, and that a client's
own parameters of a transfer are found however they are written. And the header that names prefill pods."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_contract.disaggregation import prefill_addresses, prefill_header
from pagefleet_sidecar import legs
from pagefleet_sidecar.documents import document_of, may_name

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "document", "expected"),
    [
        (CHAT, MESSAGES, True),
        (CHAT, {**MESSAGES, "n": 1, "logprobs": True, "top_logprobs": 2}, True),
        (CHAT, {**MESSAGES, "n": 2}, False),
        (CHAT, {"messages": "hi"}, False),
        (TEXT, {"prompt": "hi"}, True),
        (TEXT, {"prompt": [1, 2, 3]}, True),
        (TEXT, {"prompt": ["hi", "you"]}, False),
        (TEXT, {"prompt": [[1], [2]]}, False),
        (TEXT, {"prompt": []}, False),
        (TEXT, {"prompt": "hi", "best_of": 3}, False),
        (TEXT, {"prompt": "hi", "echo": True}, False),
        (TEXT, {"prompt": "hi", "prompt_logprobs": 1}, False),
        (TEXT, {"prompt": "hi", "use_beam_search": True}, False),
        ("/v1/embeddings", {"input": "hi"}, False),
        ("/v1/responses", {"input": "hi"}, False),
    ],
)
def test_which_requests_have_a_prefill_leg(path: str, document: dict[str, Any], expected: bool) -> None:
    assert legs.is_split(path, document) is expected


def test_a_prefill_pod_is_asked_for_one_token_and_its_pages() -> None:
    given_ = {
        **MESSAGES,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 500,
        "min_tokens": 9,
    }
    asked = json.loads(legs.prefill_body({**given_, "temperature": 0.5, legs.PARAMS: {"remote_host": "mine"}}))
    assert asked == {
        **MESSAGES, "temperature": 0.5, "stream": False, "max_tokens": 1, "max_completion_tokens": 1,
        legs.PARAMS: {
            "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
            "remote_host": None, "remote_port": None,
        },
    }  # fmt: skip


def test_the_decode_engine_gets_the_prefill_pods_parameters_or_none() -> None:
    mine = {**MESSAGES, legs.PARAMS: {"remote_host": "mine"}}
    assert json.loads(legs.decode_body(mine, {"remote_host": "10.0.0.7"}))[legs.PARAMS] == {"remote_host": "10.0.0.7"}
    assert json.loads(legs.decode_body(mine, None)) == MESSAGES


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b"{}", b'{"kv_transfer_params": null}', b'{"kv_transfer_params": {}}', b"{"]
)
def test_an_answer_without_parameters_is_none(answer: bytes) -> None:
    assert legs.params_of(answer) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=6), JSON, max_size=4),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-32-be"]),
    st.sets(st.integers(0, len(legs.PARAMS) - 1)),
)
def test_parameters_of_a_client_are_found_however_they_are_written(
    document: dict[str, Any], encoding: str, escaped: set[int]
) -> None:
    """A JSON parser that reads them is an engine's, so one that would not be found could not be taken away."""
    name = "".join(f"\\u{ord(letter):04x}" if place in escaped else letter for place, letter in enumerate(legs.PARAMS))
    text = json.dumps({**document, "@": {"remote_host": "mine"}}).replace('"@"', f'"{name}"')
    body = text.encode(encoding)
    assert legs.PARAMS in json.loads(body)
    assert may_name(body, legs.PARAMS)
    read = document_of(body)
    assert read is not None and legs.PARAMS not in json.loads(legs.decode_body(read, None))


def test_the_header_names_pods_of_each_revision() -> None:
    value = prefill_header([("aaaa", "10.0.0.7:8000"), ("bbbb", "[fd00::7]:8000"), ("aaaa", "10.0.0.8:8000")])
    assert value == "aaaa@10.0.0.7:8000,bbbb@[fd00::7]:8000,aaaa@10.0.0.8:8000"
    assert prefill_addresses(value, "aaaa") == ("10.0.0.7:8000", "10.0.0.8:8000")
    assert prefill_addresses(value, "bbbb") == ("[fd00::7]:8000",)
    assert prefill_addresses(value, "cccc") == prefill_addresses("", "aaaa") == prefill_addresses(value, "") == ()


@pytest.mark.parametrize(
    "entry", ["aaaa@metadata.internal:8000", "aaaa@10.0.0.7:22", "aaaa@10.0.0.7", "aaaa@", "aaaa", "aaaa@10.0.0.7:8000/x", "@10.0.0.7:8000"]
)  # fmt: skip
def test_only_an_engines_port_at_an_ip_address_is_asked(entry: str) -> None:
    assert prefill_addresses(entry, "aaaa") == ()


@given(
    st.lists(
        st.tuples(st.sampled_from(["a1", "b2", "c3", "a12"]), st.integers(1, 250)),
        max_size=4,
    )
)
def test_a_sidecar_reads_its_own_revisions_pods_and_no_other(pods: list[tuple[str, int]]) -> None:
    named = [(revision, f"10.0.0.{number}:8000") for revision, number in pods]
    value = prefill_header(named)
    for revision in ("a1", "b2", "c3", "a12", "a"):
        own = tuple(address for name, address in named if name == revision)
        assert prefill_addresses(value, revision) == own
