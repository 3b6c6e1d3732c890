"""Reads a long JSON object without holding up the event loop: others run between the entries of one of its lists.

A thread would not help: the interpreter's lock is held while json.loads runs, 12 ms for 1 MiB. To find where the entries begin
and end takes 2 ms for 1 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import msgspec

from pagefleet_operator.domain.base.json_text import loads
from pagefleet_operator.metrics.accounts import Account, taking_turns

SHORT = 64 << 10  # characters that are read in less than a millisecond
_MEMBERS, _ENTRIES = msgspec.json.Decoder(dict[str, msgspec.Raw]), msgspec.json.Decoder(list[msgspec.Raw])


async def load(
    text: str, long: tuple[str, ...], account: Account, read: Callable[[msgspec.Raw], Any] = loads
) -> dict[str, Any]:
    """Return the object in `text`. `long` are the names that lead to the list that may be long. `read` reads one of its entries.

    Raises ValueError for anything but an object, and RecursionError for one that is too deep.
    """
    if len(text) <= SHORT:
        with account.spending():
            known = loads(text)
        if not isinstance(known, dict):
            raise ValueError("it is no object")
        return known
    document: dict[str, Any] = {}
    async for _ in taking_turns(_read(text, long, document, read), account):
        pass
    return document


def _read(
    text: str | msgspec.Raw, long: tuple[str, ...], document: dict[str, Any], read: Callable[[msgspec.Raw], Any]
) -> Generator[None, None, None]:
    """Fill in the document. Yields where others may run."""
    for name, value in _MEMBERS.decode(text).items():
        begin = bytes(memoryview(value)[:1]) if long[:1] == (name,) else b""
        if begin == b"[" and len(long) == 1:
            entries = document[name] = []
            for entry in _ENTRIES.decode(value):
                entries.append(read(entry))
                yield None
        elif begin == b"{" and len(long) > 1:
            document[name] = {}
            yield from _read(value, long[1:], document[name], read)
        else:
            document[name] = loads(value)
