"""Reads the numbers that selectors name from a text in Prometheus' format. A missing number stays missing.

The page of any engine is read in the same way. A page comes from a tenant's pod and is read on the operator's event loop,
so its cost is bounded: lines are found by their names without a look at the others, and only so many are taken apart. The
worst page of MAX_BYTES takes about 20 ms, one of vLLM a tenth of one (`bench/tenants.py`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.samples import Sample

from pagefleet_contract.engine_metrics import Selector

MAX_BYTES = 1 << 20  # of a page; vLLM's with all its histograms has less than a tenth of it
MAX_SAMPLES, MAX_LINE, MAX_CHOSEN = 2_000, 4_096, 128 << 10  # of the chosen lines: number, characters each and together
LARGEST = 1e15  # a number above it is none of an engine
MAX_REMEMBERED = 256  # characters of a line's labels
Samples = Mapping[str, list[Sample]]  # by name
_LABEL = r'\s*+([a-zA-Z_][a-zA-Z0-9_]*+)\s*+=\s*+"([^"\\]*+(?:\\.[^"\\]*+)*+)"\s*+'
_LABELS = re.compile(rf"(?:{_LABEL}(?:,|$))*+\s*+")
_ONE_LABEL = re.compile(_LABEL)


def samples(text: str, names: Iterable[str]) -> Samples:
    """The samples of these names, a few lines among the hundreds of an engine's page. Raises ValueError for a line that
    cannot be read, and for more lines than are taken apart."""
    result: dict[str, list[Sample]] = {}
    number = size = 0
    for name, rest in _lines(text, tuple(sorted(set(names)))):
        number, size = number + 1, size + len(rest)
        if number > MAX_SAMPLES or len(rest) > MAX_LINE or size > MAX_CHOSEN:
            raise ValueError(
                f"its series of {name} are more than an engine's: {number} lines, {size} characters so far"
            )
        result.setdefault(name, []).append(_sample(name, rest))
    return result


def number(page: Samples, chosen: Selector) -> float | None:
    """The sum of the selected series, None without any. Raises ValueError for a number that is not from 0 to LARGEST."""
    values = []
    for sample in page.get(chosen.name, ()):
        if chosen.label and chosen.value is None:
            values.append(float(sample.labels.get(chosen.label, "")))
        elif not chosen.label or sample.labels.get(chosen.label) == chosen.value:
            values.append(sample.value)
    if not (all(value >= 0 for value in values) and sum(values) <= LARGEST):
        raise ValueError(f"{chosen.name} is no number from 0 to {LARGEST:g}")
    return sum(values) if values else None


def _lines(text: str, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(name, the rest of the line) of every line that begins with one of the names."""
    for match in _finder(names).finditer("\n" + text) if names else ():
        yield match[1], match[2]


@functools.lru_cache(maxsize=256)
def _finder(names: tuple[str, ...]) -> re.Pattern[str]:
    """The pattern of a name and the rest of its line. Longer names come first, because one may begin with another."""
    listed = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.compile(rf"\n({listed})(?=[ \t{{])([^\n]*+)")


@functools.lru_cache(maxsize=16_384)
def _labels(listed: str) -> dict[str, str] | None:
    """The labels, which nobody may change; None when they cannot be read. A page has the same ones each time it is read."""
    if _LABELS.fullmatch(listed) is None:
        return None
    return {label: _plain(value) for label, value in _ONE_LABEL.findall(listed)}


def _sample(name: str, rest: str) -> Sample:
    """Read `{labels} value` or ` value`; a time after it does not matter. Raises ValueError."""
    labels, before = dict[str, str](), rest.lstrip(" \t")
    if before.startswith("{"):
        listed, closed, before = before[1:].rpartition("}")
        read = _labels(listed) if len(listed) <= MAX_REMEMBERED else _labels.__wrapped__(listed)
        if not closed or read is None:
            raise ValueError(f"the labels of {name} cannot be read")
        labels = read
    words = before.split(maxsplit=1)
    if not words or "_" in words[0]:
        raise ValueError(f"{name} has no value")
    return Sample(name, labels, float(words[0]))


def _plain(text: str) -> str:
    """A label's value without its escapes: a backslash, a quote and a line's end."""
    if "\\" not in text:
        return text
    return "\\".join(part.replace("\\n", "\n").replace('\\"', '"') for part in text.split("\\\\"))
