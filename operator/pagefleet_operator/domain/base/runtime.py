"""Which engine a spec, or a revision's snapshot, names. Pure; domain/runtimes has what each of them is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OURS = "pagefleet"


def runtime_name(spec: Mapping[str, Any]) -> str:
    """As it is given, known or not."""
    return str((spec.get("engine") or {}).get("runtime", OURS))


def is_ours(spec: Mapping[str, Any]) -> bool:
    return runtime_name(spec) == OURS


def guessing(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """`spec.model.speculation` where it says who guesses tokens; {} where it says that nobody does, or nothing."""
    speculation: Mapping[str, Any] = spec["model"].get("speculation") or {}
    return {} if speculation.get("method") == "none" else speculation
