"""Reads the grammar of a request: OpenAI's `response_format`, vLLM's `guided_*` and `structured_outputs`. Pure.

Bounds the size of a client's grammar; `model.text.grammar_check` decides whether it compiles.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_engine.api.base.errors import invalid
from pagefleet_engine.core.requests import Grammar

MAX_SCHEMA_BYTES = 64 << 10
MAX_SCHEMA_DEPTH = 64
MAX_REGEX_BYTES = 4 << 10
MAX_CHOICES = 256
# The fields read here, for the table of known parameters.
FIELDS = ("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")


@dataclass(frozen=True)
class Asked:
    """A grammar and the field of the request that holds it; later errors name that field."""

    grammar: Grammar
    param: str


def read(body: Mapping[str, Any]) -> Asked | None:
    """The one grammar of a request's body. Raises ApiError (400) that names the field."""
    given = [asked for field in FIELDS if (asked := _field(body, field)) is not None]
    if len(given) > 1:
        second = given[1].param.split(".")[0]
        raise invalid(second, f"{second} cannot be combined with {given[0].param.split('.')[0]}; send one of them")
    return given[0] if given else None


def schema_text(schema: Any, param: str) -> str:
    """A JSON schema, given as an object or as its text, as bounded text. Raises ApiError (400)."""
    if isinstance(schema, str):
        _bounded(schema, MAX_SCHEMA_BYTES, param)
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise invalid(param, f"{param} is not valid JSON: {error}") from error
        except RecursionError:
            raise _too_deep(param) from None
    if not isinstance(schema, dict):
        raise invalid(param, f"{param} must be a JSON schema (an object)")
    _check_tree(schema, param)
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise invalid(param, f"{param} may not hold NaN or infinities") from error
    return _bounded(text, MAX_SCHEMA_BYTES, param)


def _field(body: Mapping[str, Any], field: str) -> Asked | None:
    value = body.get(field)
    if value is None:
        return None
    match field:
        case "response_format":
            return _response_format(value)
        case "structured_outputs":
            return _structured_outputs(value)
        case _:
            return READERS[field.removeprefix("guided_")](value, field)


def _response_format(value: Any) -> Asked | None:
    where = "response_format"
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        raise invalid(where, f"{where} must be an object whose type is one of text, json_object, json_schema")
    _only(value, {"type", "json_schema"} if kind == "json_schema" else {"type"}, where)
    if kind == "text":
        return None
    if kind == "json_object":
        return Asked(Grammar("json_object", ""), where)
    inner, where = value.get("json_schema"), f"{where}.json_schema"
    if not isinstance(inner, dict):
        raise invalid(where, f"{where} must be an object with name and schema")
    _only(inner, {"name", "description", "schema", "strict"}, where)
    if not isinstance(inner.get("name"), str) or not 1 <= len(inner["name"]) <= 64:
        raise invalid(f"{where}.name", f"{where}.name must be a string of 1 to 64 characters")
    if not isinstance(inner.get("strict"), bool | None):
        raise invalid(f"{where}.strict", f"{where}.strict must be a boolean")
    if not isinstance(inner.get("description"), str | None):
        raise invalid(f"{where}.description", f"{where}.description must be a string")
    # Not strict allows more than the schema; an answer that follows it is right either way.
    return _json(inner.get("schema"), f"{where}.schema")


def _structured_outputs(value: Any) -> Asked | None:
    where = "structured_outputs"
    if not isinstance(value, dict):
        raise invalid(where, f"{where} must be an object with one of {', '.join(READERS)}")
    _only(value, set(READERS), where)
    given = {name: inner for name, inner in value.items() if inner is not None and inner is not False}
    if not given:
        return None
    if len(given) > 1:
        raise invalid(where, f"{where} must have one of {', '.join(READERS)}, not {' and '.join(sorted(given))}")
    ((name, inner),) = given.items()
    return READERS[name](inner, f"{where}.{name}")


def _json(value: Any, param: str) -> Asked:
    return Asked(Grammar("json_schema", schema_text(value, param)), param)


def _json_object(value: Any, param: str) -> Asked:
    if value is not True:
        raise invalid(param, f"{param} must be a boolean")
    return Asked(Grammar("json_object", ""), param)


def _regex(value: Any, param: str) -> Asked:
    return Asked(Grammar("regex", _text(value, MAX_REGEX_BYTES, param)), param)


def _grammar(value: Any, param: str) -> Asked:
    return Asked(Grammar("grammar", _text(value, MAX_SCHEMA_BYTES, param)), param)


def _choice(value: Any, param: str) -> Asked:
    good = isinstance(value, list) and 1 <= len(value) <= MAX_CHOICES
    if not good or not all(isinstance(choice, str) and choice for choice in value):
        raise invalid(param, f"{param} must be a list of 1 to {MAX_CHOICES} non-empty strings")
    text = json.dumps(value, ensure_ascii=False)
    return Asked(Grammar("choice", _bounded(text, MAX_SCHEMA_BYTES, param)), param)


READERS: Mapping[str, Callable[[Any, str], Asked]] = {
    "json": _json, "regex": _regex, "choice": _choice, "grammar": _grammar, "json_object": _json_object,
}  # fmt: skip


def _only(value: Mapping[str, Any], allowed: set[str], where: str) -> None:
    extra = sorted(set(value) - allowed)
    if extra:
        name = f"{where}.{extra[0][:64]}"
        raise invalid(name, f"{name} is not known; allowed: {', '.join(sorted(allowed))}", "unknown_parameter")


def _text(value: Any, most: int, param: str) -> str:
    if not isinstance(value, str) or not value:
        raise invalid(param, f"{param} must be a non-empty string")
    return _bounded(value, most, param)


def _bounded(text: str, most: int, param: str) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise invalid(param, f"{param} is not valid Unicode: {error.reason}") from error
    if size > most:
        raise invalid(param, f"{param} has {size} bytes, allowed are {most}")
    return text


def _check_tree(schema: Any, param: str) -> None:
    """Depth and references, without recursion: the depth is the client's."""
    level = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        below: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                for key in ("$ref", "$dynamicRef", "$recursiveRef"):
                    target = node.get(key)
                    if isinstance(target, str) and not target.startswith("#"):
                        raise invalid(
                            param, f"{param}: {key} may only point into the schema (#/...), not to {target[:64]!r}"
                        )
                below += node.values()
            elif isinstance(node, list):
                below += node
        level = [node for node in below if isinstance(node, dict | list)]
        if not level:
            return
    raise _too_deep(param)


def _too_deep(param: str) -> Exception:
    return invalid(param, f"{param} is nested more than {MAX_SCHEMA_DEPTH} levels deep")
