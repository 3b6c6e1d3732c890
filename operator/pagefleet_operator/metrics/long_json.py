"""Reads a long JSON object without holding up the event loop: others run between the entries of one of its lists.

A thread would not help: the interpreter's lock is held while json.loads runs, 12 ms for 1 MiB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from pagefleet_operator.metrics.accounts import Account, taking_turns

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


async def load(text: str, long: str, account: Account) -> dict[str, Any]:
    """The object in `text`, whose member `long` may be a long list. Raises ValueError for anything but an object, and
    RecursionError for one that is too deep."""
    result: dict[str, Any] = {}
    async for member in taking_turns(_members(text, long), account):
        if member is not None:
            name, value = member
            result[name] = value
    return result


def _members(text: str, long: str) -> Iterator[tuple[str, Any] | None]:
    """The members by name, and None after each entry of the long list: a place for others to run."""
    at = _after(text, 0, "{")
    if text[at : at + 1] == "}":
        return _end(text, at + 1)
    while True:
        name, at = _DECODER.raw_decode(text, at)
        if not isinstance(name, str):
            raise ValueError(f"character {at}: the name of a member must be text")
        at = _after(text, at, ":")
        if name == long and text[at : at + 1] == "[":
            entries: list[Any] = []
            at = _skip(text, at + 1)
            while text[at : at + 1] != "]":
                if entries:
                    at = _after(text, at, ",")
                entry, at = _DECODER.raw_decode(text, at)
                entries.append(entry)
                at = _skip(text, at)
                yield None
            yield name, entries
            at += 1
        else:
            value, at = _DECODER.raw_decode(text, at)
            yield name, value
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            return _end(text, at + 1)
        at = _after(text, at, ",")


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _after(text: str, at: int, mark: str) -> int:
    """The place of the next value after `mark`, which must come next."""
    at = _skip(text, at)
    if text[at : at + 1] != mark:
        raise ValueError(f"character {at}: {mark} is missing")
    return _skip(text, at + 1)


def _end(text: str, at: int) -> None:
    if _skip(text, at) != len(text):
        raise ValueError(f"character {at}: the object has ended")
