"""What the writers of both protocols have in common. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pagefleet_engine.api.answers.shapes import Usage
from pagefleet_engine.api.base.errors import ApiError
from pagefleet_engine.api.parsing.deltas import Delta

Json = dict[str, Any]


class Writer(Protocol):
    """One answer as a protocol's events. The whole document is what the events add up to."""

    def begin(self, usage: Usage) -> list[Json]:
        """Return the events before the first token."""
        ...

    def take(self, delta: Delta, logprobs: Sequence[Mapping[str, Any]] = ()) -> list[Json]:
        """Return the events of a piece."""
        ...

    def end(self, finish: str, stop: str | None, usage: Usage) -> list[Json]:
        """Return the last events. `stop`: the stop string that ended the answer."""
        ...

    def failure(self, error: ApiError) -> Json:
        """Return the event of an error within the stream."""
        ...

    @property
    def document(self) -> Json:
        """Return the answer as it is now."""
        ...


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"
