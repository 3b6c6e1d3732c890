"""The JSON of a value, by which results about the value are remembered: what it says counts, and not which object it is."""

from __future__ import annotations

from typing import Any

import msgspec

decode = msgspec.json.decode


def json_text(value: Any) -> bytes | None:
    """Return the JSON of a value, without blanks; None where it has none, so that it never came from the API server."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
