"""Finds the metrics and labels of a PromQL expression: a tokenizer, no parser; promtool checks whether it is PromQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[A-Za-z_:][\w:]*|\d[\w.]*|[{}(),]|[=!<>~]+|[-+*/%^]')
LABEL_LISTS = ("by", "without", "on", "ignoring", "group_left", "group_right")
WORDS = (*LABEL_LISTS, "and", "or", "unless", "bool", "offset", "sum", "max", "min", "count", "avg", "topk")


@dataclass(frozen=True)
class Use:
    """A metric, and the labels that its selector names with their values."""

    metric: str
    matchers: tuple[tuple[str, str], ...] = ()


def uses(expr: str) -> list[Use]:
    """Return the selectors of `expr`."""
    return [use for use in _walk(expr) if isinstance(use, Use)]


def groupings(expr: str) -> set[str]:
    """Return the labels that `expr` groups or joins by."""
    return {label for label in _walk(expr) if isinstance(label, str)}


def _walk(expr: str) -> Iterator[Use | str]:
    tokens = TOKEN.findall(expr)
    index = 0
    while index < len(tokens):
        token, after = tokens[index], tokens[index + 1] if index + 1 < len(tokens) else ""
        if token in LABEL_LISTS and after == "(":
            end = tokens.index(")", index)
            yield from (label for label in tokens[index + 2 : end] if label != ",")
            index = end
        elif re.match(r"[A-Za-z_:]", token) and token not in WORDS and after != "(":
            matchers: tuple[tuple[str, str], ...] = ()
            if after == "{":
                end = tokens.index("}", index)
                inside = [part for part in tokens[index + 2 : end] if part != ","]
                matchers = tuple(zip(inside[::3], (part[1:-1] for part in inside[2::3]), strict=True))
                index = end
            yield Use(token, matchers)
        index += 1
