"""`.spec.scaling` as typed values: durations in seconds, percentages as fractions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_contract.quantity import fraction, seconds
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.spec.schedule import Entry, bounds
from pagefleet_operator.domain.spec.schema.targets import Targets, targets

DEFAULTS = Targets()


@dataclass(frozen=True)
class Policy:
    """A limit on one direction: at most `pods` and `percent` of the replicas there were within `period` seconds."""

    period: float
    pods: int | None = None
    percent: float | None = None


@dataclass(frozen=True)
class Scaling:
    """Times are in seconds. Of several policies of one direction, the one that allows the largest change counts."""

    min: int
    max: int
    target: Targets = DEFAULTS
    panic_threshold: float = 2.0
    panic_window: float = 60.0
    stabilization: float | None = None  # None: from the start-up time
    up_stabilization: float = 0.0
    up_policies: tuple[Policy, ...] = ()
    down_policies: tuple[Policy, ...] = ()
    tolerance: float = 0.1
    headroom: float = 0.0  # a share of the usual arrivals, above them
    idle_to_zero: float | None = None
    startup: float = 60.0  # assumed until one was seen
    wake: bool = False  # a schedule asks for replicas: no sleep now
    external: bool = False  # min is the number of replicas: somebody else sets it
    schedule: tuple[Entry, ...] = ()
    affordable: int | None = None  # replicas that the cost ceiling allows
    spares: int = 0  # warm ones, beyond `max`
    capped: str = ""  # why `max` is below spec.scaling.max


def scaling(raw: Mapping[str, Any]) -> Scaling:
    """From `spec.scaling` with its defaults filled in."""
    up, down = raw.get("scaleUp", {}), raw.get("scaleDown", {})
    return Scaling(
        min=raw["min"],
        max=raw["max"],
        external=raw["mode"] == "external",
        target=targets(raw["target"]),
        tolerance=fraction(raw["tolerance"]),
        headroom=fraction(raw.get("headroom", "0%")),
        panic_threshold=float(raw["panic"]["threshold"]),
        panic_window=seconds(raw["panic"]["window"]),
        stabilization=seconds(down["stabilization"]) if "stabilization" in down else None,
        up_stabilization=seconds(up["stabilization"]) if "stabilization" in up else 0.0,
        up_policies=_policies(up),
        down_policies=_policies(down),
        spares=raw.get("warmSpares", 0),
        startup=seconds(raw["startup"]) if "startup" in raw else 60.0,
        idle_to_zero=seconds(raw["idleToZero"]) if "idleToZero" in raw else None,
        schedule=tuple(
            Entry(entry["cron"], entry["timeZone"], seconds(entry["duration"]), entry.get("min"), entry.get("max"))
            for entry in raw.get("schedule") or ()
        ),
    )


def in_force(scaling: Scaling, now: float) -> Scaling:
    """With the bounds that its schedule and its cost ceiling leave at `now`."""
    least, most, wake = bounds(scaling.schedule, scaling.min, scaling.max, now)
    capped = ""
    if scaling.affordable is not None and scaling.affordable < most:
        most = max(1, scaling.affordable)
        capped = f"spec.cost.ceilingPerHour allows {most}"
    return replace(scaling, min=min(least, most), max=most, wake=scaling.wake or wake, capped=capped)


def _policies(raw: Mapping[str, Any]) -> tuple[Policy, ...]:
    return tuple(
        Policy(
            period=seconds(entry["period"]),
            pods=entry["value"] if entry["type"] == "Pods" else None,
            percent=entry["value"] / 100 if entry["type"] == "Percent" else None,
        )
        for entry in raw.get("policies") or ()
    )
