"""Bodies of requests as JSON objects. Pure."""

from __future__ import annotations

import json
from typing import Any


def document_of(body: bytes) -> dict[str, Any] | None:
    """Return the object that a body is; None for any other body."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def may_name(body: bytes, *names: str) -> bool:
    """Whether a body may have a field of one of these names. A name can be written with escapes, and JSON may be UTF-16 or UTF-32, which
    have zero bytes: their mere presence counts."""
    return b"\\u" in body or b"\0" in body or any(name.encode() in body for name in names)
