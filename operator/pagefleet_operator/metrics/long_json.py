"""Reads a long JSON object without holding up the event loop: others run between the entries of one of its lists.

A thread would not help: the interpreter's lock is held while json.loads runs, 12 ms for 1 MiB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any

from pagefleet_operator.domain.base.json_text import loads
from pagefleet_operator.metrics.accounts import Account, taking_turns

SHORT = 64 << 10  # characters that are read in less than a millisecond
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
Reader = Generator[None, None, tuple[Any, int]]  # yields where others may run; returns the value and the place after it


async def load(text: str, long: tuple[str, ...], account: Account) -> dict[str, Any]:
    """Return the object in `text`. `long` are the names that lead to the list that may be long.

    Raises ValueError for anything but an object, and RecursionError for one that is too deep.
    """
    if len(text) <= SHORT:
        with account.spending():
            known = loads(text)
        if not isinstance(known, dict):
            raise ValueError("it is no object")
        return known
    document: dict[str, Any] = {}
    async for _ in taking_turns(_whole(text, long, document), account):
        pass
    return document


def _whole(text: str, long: tuple[str, ...], document: dict[str, Any]) -> Generator[None, None, None]:
    """Fill in the document."""
    value, at = yield from _object(text, _skip(text, 0), long)
    if _skip(text, at) != len(text):
        raise ValueError(f"character {at}: the object has ended")
    document.update(value)


def _object(text: str, at: int, long: tuple[str, ...]) -> Reader:
    members: dict[str, Any] = {}
    at = _after(text, at, "{")
    if text[at : at + 1] == "}":
        return members, at + 1
    while True:
        name, at = _DECODER.raw_decode(text, at)
        if not isinstance(name, str):
            raise ValueError(f"character {at}: the name of a member must be text")
        at = _after(text, at, ":")
        begins = text[at : at + 1] if long[:1] == (name,) else ""
        if begins == "[" and len(long) == 1:
            members[name], at = yield from _list(text, at)
        elif begins == "{" and len(long) > 1:
            members[name], at = yield from _object(text, at, long[1:])
        else:
            members[name], at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            return members, at + 1
        at = _after(text, at, ",")


def _list(text: str, at: int) -> Reader:
    entries: list[Any] = []
    at = _after(text, at, "[")
    while text[at : at + 1] != "]":
        if entries:
            at = _after(text, at, ",")
        entry, at = _DECODER.raw_decode(text, at)
        entries.append(entry)
        at = _skip(text, at)
        yield None
    return entries, at + 1


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _after(text: str, at: int, mark: str) -> int:
    """The place of the next value after `mark`, which must come next."""
    at = _skip(text, at)
    if text[at : at + 1] != mark:
        raise ValueError(f"character {at}: {mark} is missing")
    return _skip(text, at + 1)
