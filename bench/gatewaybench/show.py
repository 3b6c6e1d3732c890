"""Prints the figures of one part: a line for each system, with what it adds to an engine without anything in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def show(part: str, figures: Mapping[str, Any]) -> None:
    if part == "streams":
        for count, systems in figures.items():
            show(f"{count} streams", systems)
        return
    print(f"\n{part}")
    for name, value in figures.items():
        if isinstance(value, Mapping) and "added" in value:
            added = ", ".join(f"{share} {value['added'][share]:+.2f}" for share in ("p50", "p95", "p99"))
            own = ", ".join(f"{share} {value['ms'][share]:.2f}" for share in ("p50", "p95", "p99"))
            failed = f"{value['failed']} failed" + (f": {value['statuses']}" if value.get("statuses") else "")
            print(f"  {name:<19} {own} ms; added {added} ms; {value['cores']} cores, {failed}")
        else:
            print(f"  {name:<19} {value}")
