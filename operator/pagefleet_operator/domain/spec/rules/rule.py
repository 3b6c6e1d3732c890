"""A rule that crosses fields, and the words of CEL that several rules share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# In CEL, of a spec: the name of its runtime.
RUNTIME = "(has(self.engine) && has(self.engine.runtime) ? self.engine.runtime : 'pagefleet')"


@dataclass(frozen=True)
class Rule:
    """`at` is the path below spec of the object that `cel` calls `self`; `field` is the field that an error names."""

    at: tuple[str, ...]
    field: str
    cel: str
    message: str


def given(path: str) -> str:
    """In CEL: whether the field `path` (such as engine.limits.queued) is present below `self`."""
    names = path.split(".")
    return " && ".join(f"has(self.{'.'.join(names[: end + 1])})" for end in range(len(names)))


def listed(names: Iterable[str]) -> str:
    """In CEL: a list of names."""
    return "[" + ", ".join(f"'{name}'" for name in names) + "]"
