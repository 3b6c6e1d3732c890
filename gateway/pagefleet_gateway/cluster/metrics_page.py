"""Reads single numbers from an engine's metrics page (Prometheus text) in time that grows with the page's size alone. Pure.

An engine is its tenant's program, so its page may be anything. Names, labels and values are found by plain searches, because
a pattern that backtracks over a page of one's choice takes hours. The series of one name and the length of a line are
bounded, and a page beyond the bounds cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_SERIES = 256  # of one name
MAX_LINE_BYTES = 64 * 1024  # the line of LoRA adapters names them all
MAX_VALUE_BYTES = 64  # a value, its timestamp and the spaces after them

_VALUE = re.compile(rb"([0-9.eE+-]++)(?: -?[0-9]++)?[ \t\r]*+")


class PageError(ValueError):
    """The page is beyond the bounds, or a number of it is none."""


def samples(page: bytes, name: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the labels' text and the value of each series of `name`. Raises PageError."""
    start = b"\n" + name
    at = 0 if page.startswith(name) else page.find(start) + 1
    left = MAX_SERIES
    while at or (left == MAX_SERIES and page.startswith(name)):
        end = page.find(b"\n", at)
        end = len(page) if end < 0 else end
        left -= 1
        if left < 0 or end - at > MAX_LINE_BYTES:
            raise PageError(f"a metrics page may have {MAX_SERIES} series of a name, of {MAX_LINE_BYTES} bytes a line")
        series = _series(page[at + len(name) : end])
        if series is not None:
            yield series
        at = page.find(start, end) + 1


def label(labels: bytes, name: bytes) -> bytes | None:
    """Return a label's value as it is written, from the text of all labels; None without it."""
    # A quote within a value is written as \", so the text cannot stand within one.
    wanted = name + b'="'
    at = 0 if labels.startswith(wanted) else labels.find(b"," + wanted) + 1
    if at == 0 and not labels.startswith(wanted):
        return None
    at += len(wanted)
    end = labels.find(b'"', at)
    return labels[at:end] if end >= 0 else None


def number(text: bytes) -> float:
    """Return the number of a text. Raises PageError for one that is none."""
    try:
        return float(text)
    except ValueError as error:
        raise PageError(f"{text[:40]!r} is not a number") from error


def _series(rest: bytes) -> tuple[bytes, bytes] | None:
    """Return labels and value of what follows a name on its line; None where the name is the start of a longer one."""
    labels = b""
    if rest.startswith(b"{"):
        end = rest.rfind(b"} ")
        labels, rest = rest[1:end], rest[end + 1 :]
        if end < 0:
            return None
    if not rest.startswith(b" ") or len(rest) > MAX_VALUE_BYTES:
        return None
    match = _VALUE.fullmatch(rest, 1)
    return None if match is None else (labels, match[1])
