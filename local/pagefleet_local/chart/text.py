"""YAML with template expressions in it, as text. Knows YAML's shape and Helm's braces, and nothing of our objects."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import yaml

SPLICED = "+"
PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./ -]*")


@dataclass(frozen=True)
class Expression:
    """A scalar that Helm computes: `{{ text }}`. Strings are to be quoted by the expression itself."""

    text: str


@dataclass(frozen=True)
class Given:
    """YAML that Helm computes as text, at its place: the value of a key, or items of a list. Under a key that begins with
    SPLICED it brings further keys of the map it stands in."""

    text: str


@dataclass(frozen=True)
class When:
    """`node` only where `condition` holds: an item of a list, or the value (with its key) of a map."""

    condition: str
    node: Any


def lines(node: Any, indent: int = 0) -> Iterator[str]:
    """The lines of a map or a list in block style. Empty ones have no block form; `scalar` writes them."""
    match node:
        case dict():
            for key, value in node.items():
                yield from _conditional(value, partial(_entry, str(key), indent=indent))
        case list():
            for value in node:
                yield from _conditional(value, partial(_item, indent=indent))
        case _:
            raise TypeError(f"{type(node).__name__} has no lines of its own")


def document(node: dict[str, Any] | When) -> str:
    """One document with its separator."""
    if isinstance(node, When):
        return f"{{{{- if {node.condition} }}}}\n{document(node.node)}{{{{- end }}}}\n"
    return "---\n" + "\n".join(lines(node)) + "\n"


def scalar(value: Any) -> str:
    """On one line. Strings that are read back as something else are quoted."""
    if isinstance(value, Expression):
        return f"{{{{ {value.text} }}}}"
    if isinstance(value, str) and not (PLAIN.fullmatch(value) and yaml.safe_load(value) == value):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        return value
    return json.dumps(value)


def _conditional(value: Any, written: Callable[[Any], Iterator[str]]) -> Iterator[str]:
    if not isinstance(value, When):
        yield from written(value)
        return
    yield f"{{{{- if {value.condition} }}}}"
    yield from _conditional(value.node, written)
    yield "{{- end }}"


def _entry(key: str, value: Any, indent: int) -> Iterator[str]:
    head = f"{' ' * indent}{key}:"
    if isinstance(value, Given) and key.startswith(SPLICED):
        yield _given(value, indent)
    elif isinstance(value, Given):
        yield head
        yield _given(value, indent + 2)
    elif isinstance(value, dict | list) and value:
        yield head
        yield from lines(value, indent + 2)
    else:
        yield f"{head} {scalar(value)}"


def _item(value: Any, indent: int) -> Iterator[str]:
    if isinstance(value, Given):
        yield _given(value, indent)
    elif isinstance(value, dict) and value:
        first, *rest = lines(value, indent + 2)
        if first.startswith("{{"):
            raise ValueError(f"the first key of a list's item may not be conditional: {first}")
        yield f"{' ' * indent}- {first.lstrip()}"
        yield from rest
    else:
        yield f"{' ' * indent}- {scalar(value)}"


def _given(value: Given, indent: int) -> str:
    return f"{{{{- {value.text} | nindent {indent} }}}}"
