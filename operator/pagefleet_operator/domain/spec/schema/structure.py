"""Checks a value against a structural schema (the CRD's subset of JSON Schema) and fills in its defaults.

The API server does the same before it stores an object; the operator repeats it for objects that got past (an older
schema, a write with validation off). Unknown fields are errors here, where an old API server drops them.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_operator.domain.spec.schema.patterns import mismatch

TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (Mapping,), "array": (list,), "string": (str,), "boolean": (bool,), "integer": (int,),
    "number": (int, float),
}  # fmt: skip


@dataclass(frozen=True)
class SpecError:
    """`field` is a path such as spec.scaling.min; `message` says what is allowed."""

    field: str
    message: str


def check(value: object, schema: Mapping[str, Any], path: str) -> list[SpecError]:
    """Every way in which `value` breaks `schema`. Total."""
    return list(_check(value, schema, path))


def filled(value: Any, schema: Mapping[str, Any]) -> Any:
    """`value` with the defaults of missing fields, also inside objects that are missing but have defaults within."""
    if schema.get("type") == "array" and isinstance(value, list):
        return [filled(item, schema["items"]) for item in value]
    if schema.get("type") != "object" or not isinstance(value, dict):
        return value
    for name, sub in schema.get("properties", {}).items():
        if name in value:
            value[name] = filled(value[name], sub)
        elif "default" in sub:
            value[name] = copy.deepcopy(sub["default"])
        elif sub.get("type") == "object" and not sub.get("required") and _has_defaults(sub):
            value[name] = filled({}, sub)
    return value


def known(value: Any, schema: Mapping[str, Any]) -> Any:
    """`value` without the fields that `schema` does not know, as the API server prunes it."""
    if isinstance(value, list):
        return [known(item, schema["items"]) for item in value] if "items" in schema else value
    properties = schema.get("properties")
    if not isinstance(value, Mapping) or properties is None or schema.get("x-kubernetes-preserve-unknown-fields"):
        return value
    return {name: known(item, properties[name]) for name, item in value.items() if name in properties}


def at(value: Any, path: tuple[str, ...]) -> Any:
    """The field at a path of names; None where a part of the path is missing."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _has_defaults(schema: Mapping[str, Any]) -> bool:
    subs = schema.get("properties", {}).values()
    return any("default" in sub or (sub.get("type") == "object" and _has_defaults(sub)) for sub in subs)


def _check(value: object, schema: Mapping[str, Any], path: str) -> Iterator[SpecError]:
    kind = str(schema.get("type", "object"))
    if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        yield SpecError(path, f"must be {_article(kind)}, not {_shown(value)}")
        return
    if "enum" in schema and value not in schema["enum"]:
        yield SpecError(path, f"must be one of {', '.join(map(str, schema['enum']))}, not {_shown(value)}")
    if isinstance(value, str):
        yield from _text(value, schema, path)
    elif isinstance(value, list):
        if len(value) > schema.get("maxItems", math.inf):
            yield SpecError(path, f"has {len(value)} entries, allowed are {schema['maxItems']}")
            return
        if len(value) < schema.get("minItems", 0):
            yield SpecError(path, f"must have at least {schema['minItems']} entry")
        for index, item in enumerate(value):
            yield from _check(item, schema["items"], f"{path}[{index}]")
    elif isinstance(value, Mapping):
        yield from _object(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _bounds(value, schema, path)


def _text(value: str, schema: Mapping[str, Any], path: str) -> Iterator[SpecError]:
    if len(value) > schema.get("maxLength", math.inf):
        yield SpecError(path, f"has {len(value)} characters, allowed are {schema['maxLength']}")
    elif "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        yield SpecError(path, mismatch(value, schema["pattern"], _shown(value)))


def _bounds(value: float, schema: Mapping[str, Any], path: str) -> Iterator[SpecError]:
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    if not low <= value <= high:
        yield SpecError(path, f"must be from {low} to {high}, not {_shown(value)}")


def _object(value: Mapping[Any, object], schema: Mapping[str, Any], path: str) -> Iterator[SpecError]:
    properties = schema.get("properties", {})
    for name in schema.get("required") or ():
        if name not in value:
            yield SpecError(f"{path}.{name}", "is required")
    if len(value) > schema.get("maxProperties", math.inf):
        yield SpecError(path, f"has {len(value)} entries, allowed are {schema['maxProperties']}")
        return
    if len(value) < schema.get("minProperties", 0):
        yield SpecError(path, f"must have at least {schema['minProperties']} entry")
    extra = schema.get("additionalProperties")
    for name, item in value.items():
        where = f"{path}.{name}"
        if name in properties:
            yield from _check(item, properties[name], where)
        elif extra is not None:
            yield from _check(item, extra, where)
        elif not schema.get("x-kubernetes-preserve-unknown-fields"):
            yield SpecError(where, f"is unknown; known here: {', '.join(properties)}")


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aio" else f"a {kind}"


def _shown(value: object) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
