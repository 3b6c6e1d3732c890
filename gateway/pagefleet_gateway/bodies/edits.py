"""Changes of fields in a request's JSON body, as pieces to replace. Pure.

Envoy has the body, and the picker only names the pieces, so no body is written by the picker. Each change is checked by reading
the changed body: a field of the same name within a prompt or a tool's schema is never changed. A change that cannot be
checked is left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

MAX_PLACES = 2  # fields of one name that are tried, the last first; a body with more gets the field a second time
_GENERATING = re.compile(r"/(completions|messages|responses)(?:[?#]|$)")
_VALUE = re.compile(rb'[ \t\r\n]*:[ \t\r\n]*(-?[0-9][0-9.eE+-]*|null|"(?:[^"\\]|\\.)*")')


@dataclass(frozen=True)
class Edit:
    """Replace `length` bytes of the body from `start` on by `text`."""

    start: int
    length: int
    text: str

    def __str__(self) -> str:
        return f"{self.start} {self.length} {self.text}"


def edited(body: bytes, edits: tuple[Edit, ...]) -> bytes:
    """Return the body with all changes made."""
    pieces, at = [], 0
    for edit in sorted(edits, key=lambda edit: edit.start):
        pieces += [body[at : edit.start], edit.text.encode()]
        at = edit.start + edit.length
    return b"".join([*pieces, body[at:]])


def with_value(body: bytes, name: str, value: int | str) -> tuple[Edit, ...]:
    """Return the change that sets a field of the body's object to a number or a text; () where the body is no object.

    A field that is there is replaced, and one that is not is put first. Where a field is written in a way that is not found, it
    is put last: of two fields with one name JSON parsers take the later one.
    """
    fields = _fields(body)
    if fields is None or fields.get(name) == value:
        return ()
    for edit in _places(body, name, value, present=name in fields):
        changed = _fields(edited(body, (edit,)))
        if changed is not None and changed.get(name) == value:
            return (edit,)
    return ()


def _places(body: bytes, name: str, value: int | str, *, present: bool) -> Iterator[Edit]:
    written = json.dumps(value)
    if not present:
        start = body.find(b"{") + 1
        yield Edit(start, 0, f'"{name}":{written},')
        return
    key, at = b'"%s"' % name.encode(), len(body)
    for _ in range(MAX_PLACES):  # from the end: a pattern over the whole of a large body takes a hundred times as long
        at = body.rfind(key, 0, at)
        if at < 0:
            break
        match = _VALUE.match(body, at + len(key))
        if match is not None and body[at - 1 : at] != b"\\":
            yield Edit(match.start(1), match.end(1) - match.start(1), written)
    yield Edit(body.rfind(b"}"), 0, f',"{name}":{written}')


class _Changed(msgspec.Struct):
    """The fields that are changed. They are read anew for each change, so no others are decoded."""

    max_tokens: msgspec.Raw = msgspec.Raw(b"")
    max_completion_tokens: msgspec.Raw = msgspec.Raw(b"")
    max_output_tokens: msgspec.Raw = msgspec.Raw(b"")
    min_tokens: msgspec.Raw = msgspec.Raw(b"")
    priority: msgspec.Raw = msgspec.Raw(b"")
    model: msgspec.Raw = msgspec.Raw(b"")


_decoder = msgspec.json.Decoder(_Changed)


def _fields(body: bytes) -> Mapping[str, object] | None:
    """Return those of the fields of `_Changed` that the body has; None for a body that is no object."""
    try:
        found = _decoder.decode(body)
        return {
            name: msgspec.json.decode(raw)
            for name in _Changed.__struct_fields__
            if (raw := bytes(getattr(found, name)))
        }
    except (ValueError, RecursionError):
        return None


def may_be_changed(body: bytes, path: str) -> bool:
    """Return whether the fields of a generating request can be read and changed. Engines in Python also take what is no JSON by RFC 8259:
    NaN, and UTF-16."""
    return not body or not _GENERATING.search(path) or _fields(body) is not None


def renamed(body: bytes, model: str) -> bytes:
    """Return the body with another model's name. A body that is no object, or has nothing in it, stays as it is."""
    return edited(body, with_value(body, "model", model))


def prioritized(body: bytes, path: str, priority: int) -> tuple[Edit, ...]:
    """Return the change that gives a generating request this priority in the engine, in place of the client's own. A request
    without a priority has 0."""
    if not _GENERATING.search(path) or (not priority and not (_fields(body) or {}).get("priority")):
        return ()
    return with_value(body, "priority", priority)


def capped(body: bytes, path: str, limit: int) -> tuple[Edit, ...]:
    """Return the changes after which no answer to a generating request has more than `limit` new tokens.

    A minimum above the limit is lowered too, because engines refuse a minimum above the maximum. A limit that is no number,
    and no text of one, stays: the engine refuses it.
    """
    generating = _GENERATING.search(path)
    fields = _fields(body) if generating else None
    if generating is None or fields is None:
        return ()
    names = ("max_output_tokens",) if generating[1] == "responses" else ("max_tokens", "max_completion_tokens")
    edits: list[Edit] = []
    if any(fields.get(name) is not None for name in names):
        for name in names:
            edits += _lowered(body, fields, name, limit)
    else:
        edits += with_value(body, next((name for name in names if name in fields), names[0]), limit)
    return (*edits, *_lowered(body, fields, "min_tokens", limit))


def _lowered(body: bytes, fields: Mapping[str, object], name: str, limit: int) -> tuple[Edit, ...]:
    value = fields.get(name)
    return with_value(body, name, limit) if isinstance(value, int | float | str) and _number(value) > limit else ()


def _number(value: float | str) -> float:
    """Return a limit as engines read it: those that check with pydantic take a text of digits for a number."""
    try:
        return value if isinstance(value, int | float) else float(value)
    except ValueError:
        return math.nan
