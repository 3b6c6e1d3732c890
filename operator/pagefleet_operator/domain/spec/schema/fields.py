"""The words that the schema of `.spec` is written in: types with their bounds."""

from __future__ import annotations

from typing import Any

from pagefleet_contract.names import OBJECT_NAME
from pagefleet_contract.quantity import CONFIDENCE, DURATION, PART, PERCENT, SHARE, TIME_LIMIT
from pagefleet_operator.domain.spec.schema.patterns import OBJECT_KEY

Schema = dict[str, Any]


def text(description: str, *, pattern: str | None = None, longest: int = 253, **more: Any) -> Schema:
    schema: Schema = {"type": "string", "description": description, "maxLength": longest, **more}
    if pattern:
        schema["pattern"] = pattern
    return schema


def choice(description: str, values: tuple[str, ...], **more: Any) -> Schema:
    return {"type": "string", "description": description, "enum": list(map(str, values)), **more}


def integer(description: str, low: int, high: int, **more: Any) -> Schema:
    return {"type": "integer", "description": description, "minimum": low, "maximum": high, **more}


def number(description: str, low: float, high: float, **more: Any) -> Schema:
    return {"type": "number", "description": description, "minimum": low, "maximum": high, **more}


def duration(description: str, **more: Any) -> Schema:
    return text(f"{description} A duration such as 90s, 1h30m, 3d.", pattern=DURATION, longest=32, **more)


def time_limit(description: str, **more: Any) -> Schema:
    """A duration without days, with which rules calculate."""
    return text(f"{description} A duration such as 90s, 5m, 1h30m.", pattern=TIME_LIMIT, longest=32, **more)


def percent(description: str, **more: Any) -> Schema:
    return text(f"{description} A percentage such as 15%.", pattern=PERCENT, longest=16, **more)


def share(description: str, **more: Any) -> Schema:
    """A part of something, all of it included."""
    return text(f"{description} From 0% to 100%.", pattern=SHARE, longest=16, **more)


def part(description: str, **more: Any) -> Schema:
    """A part of something, never all of it."""
    return text(f"{description} Below 100%, such as 20%.", pattern=PART, longest=16, **more)


def confidence(description: str, **more: Any) -> Schema:
    return text(f"{description} From 50% to 99.999%.", pattern=CONFIDENCE, longest=16, **more)


def record(description: str, properties: Schema, required: tuple[str, ...] = (), **more: Any) -> Schema:
    schema: Schema = {"type": "object", "description": description, "properties": properties, **more}
    if required:
        schema["required"] = list(required)
    return schema


def array(description: str, items: Schema, most: int, **more: Any) -> Schema:
    return {"type": "array", "description": description, "items": items, "maxItems": most, **more}


def keyed(description: str, key: str, items: Schema, most: int, **more: Any) -> Schema:
    """An array whose entries the field `key` names. Each may have a field manager of its own (server-side apply)."""
    kind = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    return array(description, items, most, **kind, **more)


def table(description: str, values: Schema | None = None) -> Schema:
    """A map from string to string (or to `values`)."""
    value = values or {"type": "string", "maxLength": 253}
    return {"type": "object", "description": description, "maxProperties": 64, "additionalProperties": value}


def key_of(kind: str, description: str) -> Schema:
    """One key of a ConfigMap or Secret in the service's namespace."""
    return record(
        description,
        {
            "name": text(f"A {kind} in the service's namespace.", pattern=OBJECT_NAME),
            "key": text("The key whose value is taken.", pattern=OBJECT_KEY),
        },
        ("name", "key"),
    )


OPEN: Schema = {"x-kubernetes-preserve-unknown-fields": True}
