"""Fields of request bodies: each reads its value or refuses it by name, and has a JSON Schema of allowed values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pagefleet_engine.api.base.errors import invalid
from pagefleet_engine.core.sampling_fields import Entry, Kind

MAX_TOKEN_ID = 2**31 - 1
Read = Callable[[Any, str], Any]


@dataclass(frozen=True)
class Field:
    """`read` takes a value that is not null and the field's name, and raises ApiError (400).

    `effect`: false for a field that is accepted because it cannot change an answer.
    """

    read: Read
    schema: Mapping[str, Any]
    default: Any = None
    required: bool = False
    effect: bool = True


Table = Mapping[str, Field]


def read(body: Any, table: Table, not_supported: Mapping[str, tuple[Any, ...]] | None = None) -> dict[str, Any]:
    """Every field of `table`, checked, null meaning its default. Raises ApiError (400) that names the parameter.

    `not_supported`: known parameters without behaviour here, with the values that mean "not used".
    """
    if not isinstance(body, dict):
        raise invalid("body", "the request body must be a JSON object")
    for name, value in body.items():
        if name in table:
            continue
        if name not in (not_supported or {}):
            raise invalid(name[:64], f"unknown parameter {shown(name)}", "unknown_parameter")
        if not any(_same(value, unused) for unused in (not_supported or {})[name]):
            raise invalid(name, f"{name} is not supported; remove it", "unsupported_parameter")
    return {name: _value(body, name, field) for name, field in table.items()}


def _value(body: Mapping[str, Any], name: str, field: Field) -> Any:
    value = body.get(name)
    if value is not None:
        return field.read(value, name)
    if field.required:
        raise invalid(name, f"{name} is required", "missing_required_parameter")
    return field.default


def _same(value: Any, unused: Any) -> bool:
    """Equality that tells 0 from false: `store: 0` is no boolean."""
    return isinstance(value, bool) == isinstance(unused, bool) and bool(value == unused)


def integer(low: int, high: int, default: int | None = None) -> Field:
    def check(value: Any, name: str) -> int:
        whole = int(value) if isinstance(value, float) and value.is_integer() else value  # JSON has no other type
        if isinstance(whole, bool) or not isinstance(whole, int) or not low <= whole <= high:
            raise invalid(name, f"{name} must be an integer from {low} to {high}, not {shown(value)}")
        return whole

    return Field(check, _nullable("integer", minimum=low, maximum=high), default)


def number(low: float, high: float, default: float | None = None, *, above: bool = False) -> Field:
    """A finite number from `low`, or `above` it, to `high`."""

    def check(value: Any, name: str) -> float:
        inside = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
        if not inside or (above and value == low):
            least = "above" if above else "from"
            raise invalid(name, f"{name} must be a number {least} {low:g} to {high:g}, not {shown(value)}")
        return float(value)

    return Field(check, _nullable("number", **{"exclusiveMinimum" if above else "minimum": low}, maximum=high), default)


def flag(default: bool = False) -> Field:
    return Field(_kind(bool, "a boolean"), _nullable("boolean"), default)


def text(most: int, default: str | None = None, *, empty: bool = True, required: bool = False) -> Field:
    """A string of at most `most` characters, and of at least one unless `empty`."""
    least = 0 if empty else 1

    def check(value: Any, name: str) -> str:
        if not isinstance(value, str) or not least <= len(value) <= most:
            raise invalid(name, f"{name} must be a string of {least} to {most} characters, not {shown(value)}")
        return value

    schema: dict[str, Any] = {"minLength": least, "maxLength": most}
    return Field(check, {"type": "string", **schema} if required else _nullable("string", **schema), default, required)


def one_of(values: Sequence[str], default: str | None = None) -> Field:
    def check(value: Any, name: str) -> str:
        if not isinstance(value, str) or value not in values:
            raise invalid(name, f"{name} must be one of {', '.join(values)}, not {shown(value)}")
        return value

    return Field(check, {"enum": [*values, None]}, default)


def strings(most: int, longest: int) -> Field:
    """A string, or a list of up to `most`, none empty or longer than `longest` characters: a tuple of them."""

    def check(value: Any, name: str) -> tuple[str, ...]:
        several = [value] if isinstance(value, str) else value
        good = isinstance(several, list) and len(several) <= most
        if not good or not all(isinstance(one, str) and 1 <= len(one) <= longest for one in several):
            allowed = f"a string or a list of up to {most} strings of 1 to {longest} characters"
            raise invalid(name, f"{name} must be {allowed}")
        return tuple(several)

    one = {"type": "string", "minLength": 1, "maxLength": longest}
    return Field(check, {"anyOf": [one, {"type": "array", "items": one, "maxItems": most}, {"type": "null"}]}, ())


def ids(most: int) -> Field:
    """A list of up to `most` token ids, as a tuple."""

    def check(value: Any, name: str) -> tuple[int, ...]:
        if isinstance(value, list) and len(value) > most:
            raise invalid(name, f"{name} has {len(value)} ids, allowed are {most}")
        return token_ids(value, name)

    return Field(check, {"type": ["array", "null"], "items": TOKEN_ID, "maxItems": most}, ())


TOKEN_ID: Mapping[str, Any] = {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}


def token_ids(value: Any, name: str) -> tuple[int, ...]:
    """A list of token ids, quickly: a million of them takes some 50 ms. Raises ApiError (400)."""
    kinds = set(map(type, value)) if isinstance(value, list) else {str}
    if kinds == {int, float} or kinds == {float}:
        value = [int(token) if isinstance(token, float) and token.is_integer() else token for token in value]
        kinds = set(map(type, value))
    if kinds - {int} or (value and not (min(value) >= 0 and max(value) <= MAX_TOKEN_ID)):
        raise invalid(name, f"{name} must be a list of token ids (integers from 0)")
    return tuple(value)


def biases(low: float, high: float, most: int) -> Field:
    """An object of up to `most` token ids with their bias, a number from `low` to `high`: a tuple of pairs."""
    bias = number(low, high)

    def check(value: Any, name: str) -> tuple[tuple[int, float], ...]:
        if not isinstance(value, dict) or len(value) > most:
            raise invalid(name, f"{name} must be an object of up to {most} token ids with their bias")
        for key in value:
            if not (key.isascii() and key.isdigit() and len(key) <= 9):
                raise invalid(name, f"{name} has the key {shown(key)}; keys must be token ids")
        return tuple((int(key), bias.read(one, name)) for key, one in value.items())

    schema = {
        "type": ["object", "null"], "maxProperties": most, "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": {"type": "number", "minimum": low, "maximum": high},
    }  # fmt: skip
    return Field(check, schema, ())


def sampling(entry: Entry) -> Field:
    """The field of an entry of core/sampling_fields.py."""
    match entry.kind:
        case Kind.NUMBER:
            return number(entry.low, entry.high, entry.absent, above=entry.above)
        case Kind.INTEGER:
            return integer(int(entry.low), int(entry.high), entry.absent)
        case Kind.FLAG:
            return flag(entry.absent)
        case Kind.TOKEN_IDS:
            return ids(entry.most)
        case Kind.BIASES:
            return biases(entry.low, entry.high, entry.most)


def without_effect(table: Table) -> Table:
    return {name: replace(field, effect=False) for name, field in table.items()}


def document(kind: str) -> Field:
    """An object of any content."""
    return Field(_kind(dict, kind), _nullable("object"), {})


def elsewhere(schema: Mapping[str, Any]) -> Field:
    """A field that another module reads from the body."""
    return Field(lambda value, _: value, schema)


def _kind(kind: type, shown_kind: str) -> Read:
    def check(value: Any, name: str) -> Any:
        if not isinstance(value, kind):
            raise invalid(name, f"{name} must be {shown_kind}, not {shown(value)}")
        return value

    return check


def _nullable(kind: str, **schema: Any) -> Mapping[str, Any]:
    return {"type": [kind, "null"], **schema}


def shown(value: Any) -> str:
    """Return the value for an error message: short, and never deep."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    shown_value = repr(value[:40] if isinstance(value, str) else value)
    return shown_value if len(shown_value) <= 40 else shown_value[:37] + "..."
