"""The fields of a request's body that picking reads, found without building the others. Pure.

A client may send megabytes of anything. Walking a body's whole tree would stall every other pick, so the body is scanned once
in C, and only the named fields are decoded. A field with more structure than a prompt has is not decoded: its bytes stand for
its text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

FIELDS = (
    "model", "stream", "stream_options", "n", "best_of", "max_completion_tokens", "max_tokens", "max_output_tokens",
    "tools", "system", "instructions", "prompt", "input", "query", "documents", "text_1", "text_2", "messages",
)  # fmt: skip
MAX_STRUCTURE = 40_000  # commas and opening brackets of a field that is decoded; token ids have one comma each
LENIENT_BYTES = 64 * 1024  # a body up to this size may have NaN and the like, as Python's JSON has
NOT_JSON = "the request's body is not valid JSON"
_STEP_BYTES = 64 * 1024
_UNSET = msgspec.Raw(b"")

_Fields = msgspec.defstruct("_Fields", [(name, msgspec.Raw, _UNSET) for name in FIELDS])
_decoder = msgspec.json.Decoder(_Fields)
_last: tuple[bytes, Mapping[str, object] | None] = (b"", None)  # routing and cost read the same body


class BodyError(ValueError):
    """The body is not JSON."""


def document(body: bytes) -> Mapping[str, object] | None:
    """Return the body's fields of FIELDS that it has; None when it is no object. Raises BodyError.

    A field that is too large to decode is its bytes.
    """
    global _last
    if _last[0] is not body:
        _last = (body, _read(body))
    return _last[1]


def _read(body: bytes) -> Mapping[str, object] | None:
    try:
        try:
            fields = _decoder.decode(body)
        except msgspec.ValidationError:
            msgspec.json.decode(body, type=msgspec.Raw)
            return None
        return {name: _decoded(raw) for name in FIELDS if (raw := bytes(getattr(fields, name)))}
    except (ValueError, RecursionError) as error:
        if len(body) > LENIENT_BYTES:
            raise BodyError(NOT_JSON) from error
    return _lenient(body)


def _lenient(body: bytes) -> Mapping[str, object] | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BodyError(NOT_JSON) from error
    return {name: found[name] for name in FIELDS if name in found} if isinstance(found, dict) else None


def _decoded(raw: bytes) -> object:
    return json.loads(raw) if raw.startswith(b'"') or _is_simple(raw) else raw


def _is_simple(raw: bytes) -> bool:
    """Return whether a value has at most MAX_STRUCTURE commas and brackets. Stops as soon as it has more."""
    left = MAX_STRUCTURE
    for start in range(0, len(raw), _STEP_BYTES):
        piece = raw[start : start + _STEP_BYTES]
        left -= piece.count(b",") + piece.count(b"[") + piece.count(b"{")
        if left < 0:
            return False
    return True
