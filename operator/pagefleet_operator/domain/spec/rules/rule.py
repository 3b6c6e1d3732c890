"""A rule that crosses fields: the same in CEL (for the CRD) and in Python (for the operator)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# In CEL, of a spec: the engine that serves.
RUNTIME = "(has(self.engine) && has(self.engine.runtime) ? self.engine.runtime : 'pagefleet')"


@dataclass(frozen=True)
class Rule:
    """`at` is the path below spec that `cel`'s `self` and `holds`' argument are; `field` is what an error names."""

    at: tuple[str, ...]
    field: str
    cel: str
    message: str
    holds: Callable[[Any], bool]
