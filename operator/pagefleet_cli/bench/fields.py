"""The fields of a foreign document, and which of them nobody has taken: no field is ever ignored in silence. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_cli.bench.profile import ProfileError, is_number


class Fields:
    """A document by dotted paths; lists are single values. `at` is written before every path in messages."""

    def __init__(self, document: object, at: str = "") -> None:
        if not isinstance(document, Mapping):
            raise ProfileError(f"{at.rstrip('.') or 'the file'} must be an object, not {document!r}")
        self._document, self._at = document, at
        self._left = [path for path, value in _leaves(document, "") if value is not None]
        self._adopted: list[str] = []

    def peek(self, path: str, default: Any = None) -> Any:
        """The value at `path`; `default` when it is missing or null."""
        value: Any = self._document
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return default if value is None else value

    def take(self, path: str, default: Any = None) -> Any:
        """The same, and the field counts as carried over."""
        self._left = [one for one in self._left if one != path and not one.startswith(f"{path}.")]
        return self.peek(path, default)

    def number(self, path: str, default: float | None = None) -> Any:
        """Take a number, which may be missing only when there is a default. Raises ProfileError."""
        value = self.take(path, default)
        if not is_number(value):
            raise ProfileError(f"{self._at}{path} must be a number, not {value!r}")
        return value

    def adopt(self, part: Fields) -> None:
        """Count what is left of a part of this document."""
        self._adopted += part._names()

    def left(self, hints: Mapping[str, str]) -> tuple[str, ...]:
        """The fields that were not taken, each with its hint."""
        return tuple(f"{name} ({hints[name]})" if name in hints else name for name in self._names())

    def _names(self) -> list[str]:
        return [f"{self._at}{path}" for path in self._left] + self._adopted


def _leaves(document: Mapping[Any, Any], at: str) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for key, value in document.items():
        if isinstance(value, Mapping) and value:
            found += _leaves(value, f"{at}{key}.")
        else:
            found.append((f"{at}{key}", value))
    return found
