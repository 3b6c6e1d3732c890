"""Adapters are held as long as a name means them or a request uses them, and no longer."""

from __future__ import annotations

from typing import Any

import pytest

from pagefleet_engine.runner.common.adapters import Adapters


def test_unloading_frees_every_version_that_no_request_uses() -> None:
    read: list[str] = []
    adapters = Adapters(2, lambda path: read.append(path) or object())  # type: ignore[arg-type, func-returns-value]
    adapters.load("a", "first", ())
    adapters.load("a", "second", ("a#1",))  # a request still uses the first
    held: dict[str, Any] = adapters._loaded
    assert set(held) == {"a#1", "a#2"}
    with pytest.raises(ValueError, match="in use"):
        adapters.unload("a", ("a#2",))
    adapters.unload("a", ())
    assert adapters._loaded == {}
