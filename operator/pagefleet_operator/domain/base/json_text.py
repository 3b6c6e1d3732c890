"""Reads and writes JSON quickly. Results about a value are remembered by its JSON: what it says counts, not which object it is."""

from __future__ import annotations

import json
from typing import Any

import msgspec

decode = msgspec.json.decode


def loads(text: str | msgspec.Raw) -> Any:
    """Read JSON. Raises what json.loads raises, and takes what it takes: NaN, half of a surrogate pair."""
    try:
        return decode(text)
    except msgspec.DecodeError:
        return json.loads(text if isinstance(text, str) else bytes(text))


def json_text(value: Any) -> bytes | None:
    """Return the JSON of a value, without blanks; None where it has none, so that it never came from the API server."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def sorted_json(value: Any) -> bytes:
    """Return the JSON of a value, without blanks and with sorted keys: the same bytes for equal values."""
    return msgspec.json.encode(value, order="sorted")
