"""The targets of `.spec.scaling.target`: the structure and the typed value of each signal that has a target.

A new target is one field of `Targets`. `domain/scaling/signals.py` compares the load with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pagefleet_contract.quantity import fraction, seconds
from pagefleet_operator.domain.spec.schema.fields import Schema, duration, number, part, record


def _target(name: str, schema: Schema, read: Callable[[Any], float]) -> Any:
    """A field of `Targets`: its name in the spec, its structure, and the function that reads its value."""
    default = read(schema["default"]) if "default" in schema else None
    return field(default=default, metadata={"name": name, "schema": schema, "read": read})


@dataclass(frozen=True)
class Targets:
    """The load that each replica shall be kept at. A target without a default is None where the spec has none."""

    queue_depth: float = _target(
        "queueDepth", number("Requests that may wait for each replica.", 0.1, 100000, default=4), float
    )
    free_kv_pages: float = _target(
        "freeKVPages", part("Least share of free KV pages.", default="20%"), fraction
    )  # a share, 0 to 1
    ttft: float | None = _target(
        "ttft",
        record(
            "The time to the first token that replicas are added for.",
            {"p95": duration("The 95th percentile that replicas should keep.")},
            ("p95",),
        ),
        lambda raw: seconds(raw["p95"]),
    )
    tpot: float | None = _target(
        "tpot",
        record(
            "The time per output token after the first that replicas are added for.",
            {"p95": duration("The 95th percentile that replicas should keep.")},
            ("p95",),
        ),
        lambda raw: seconds(raw["p95"]),
    )


TARGET = record(
    "What a replica should be kept at.", {entry.metadata["name"]: entry.metadata["schema"] for entry in fields(Targets)}
)


def targets(raw: Mapping[str, Any]) -> Targets:
    """The typed values of `spec.scaling.target`."""
    entries = [(entry.name, entry.metadata) for entry in fields(Targets)]
    return Targets(**{name: how["read"](raw[how["name"]]) for name, how in entries if how["name"] in raw})
