"""Protects the list of sampling fields: each entry is validated by its bounds, documented, and reaches the engine's own type."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec
import pytest

from pagefleet_engine.api.base.errors import ApiError
from pagefleet_engine.api.endpoints.openapi import document
from pagefleet_engine.api.parameters import Parameters, parse
from pagefleet_engine.api.parameters.generation import CHAT, COMPLETION
from pagefleet_engine.core.requests import Grammar, SamplingParams
from pagefleet_engine.core.sampling_fields import Effect, Entry, Kind, entries

NAMES = sorted(entries())


def value(entry: Entry) -> Any:
    """Return a value that is not the default, as a request has it."""
    match entry.kind:
        case Kind.NUMBER:
            return (entry.low + entry.high) / 2 + 0.25
        case Kind.INTEGER:
            return 3
        case Kind.FLAG:
            return True
        case Kind.TOKEN_IDS:
            return [5, 6]
        case Kind.BIASES:
            return {"5": 1.5}


def read(name: str, given: Any) -> Any:
    # fmt: off
    return getattr(parse({"model": "m", "prompt": "x", "max_tokens": 9, name: given}, chat=False), name)
    # fmt: on


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_is_read_and_reaches_the_engine(name: str) -> None:
    given = value(entries()[name])
    parsed = read(name, given)
    assert parsed != getattr(SamplingParams(max_tokens=9), name)
    sent = SamplingParams(max_tokens=9, **{name: parsed})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=SamplingParams) == sent


@pytest.mark.parametrize("name", NAMES)
def test_a_request_without_the_field_has_the_entrys_value(name: str) -> None:
    entry = entries()[name]
    assert read(name, None) == entry.absent
    assert entry.absent == (1.0 if name == "temperature" else getattr(SamplingParams(max_tokens=9), name))


@pytest.mark.parametrize("name", [name for name in NAMES if entries()[name].kind in (Kind.NUMBER, Kind.INTEGER)])
def test_the_bounds_are_the_entrys(name: str) -> None:
    entry = entries()[name]
    least = entry.low if entry.kind is Kind.NUMBER and not entry.above else int(entry.low) + (1 if entry.above else 0)
    parse({"model": "m", "prompt": "x", name: least}, chat=False)
    for beyond in (entry.low - 1, entry.high * 2 + 1, *([entry.low] if entry.above else [])):
        with pytest.raises(ApiError, match=f"{name} must be"):
            parse({"model": "m", "prompt": "x", name: beyond}, chat=False)


@pytest.mark.parametrize("name", [name for name in NAMES if entries()[name].most])
def test_the_lengths_are_the_entrys(name: str) -> None:
    entry = entries()[name]
    several: Any = list(range(entry.most + 1))
    if entry.kind is Kind.BIASES:
        several = {str(token): 1 for token in several}
    with pytest.raises(ApiError, match=rf"{name}.* {entry.most}"):
        parse({"model": "m", "prompt": "x", name: several}, chat=False)


def test_every_entry_is_in_both_bodies_and_in_their_document() -> None:
    paths = document(["m"])["paths"]
    for path, table in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
        schema = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        for name in NAMES:
            assert schema["properties"][name] == table[name].schema


@pytest.mark.parametrize("name", NAMES)
def test_speculation_needs_logits_that_no_field_changes(name: str) -> None:
    entry = entries()[name]
    params = SamplingParams(max_tokens=9, **{name: read(name, value(entry))})
    assert params.moves_logits == (entry.effect is Effect.LOGITS)
    assert params.plain == (entry.effect not in (Effect.LOGITS, Effect.MASK))


def test_what_is_no_entry_is_made_by_the_api() -> None:
    made = {one.name for one in fields(SamplingParams)} - set(NAMES)
    assert made == {"max_tokens", "logprobs", "grammar"}
    assert not SamplingParams(max_tokens=1, grammar=Grammar("json_object", "")).plain
    assert {one.name for one in fields(Parameters)} >= set(NAMES)
