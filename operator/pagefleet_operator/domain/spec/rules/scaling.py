"""Rules within `.spec.scaling` and `.spec.cost`, and what CEL cannot say of schedules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pagefleet_operator.domain.base.parallel import accelerators, nodes
from pagefleet_operator.domain.base.runtime import is_ours
from pagefleet_operator.domain.spec import schedule
from pagefleet_operator.domain.spec.rules.rule import Rule
from pagefleet_operator.domain.spec.structure import SpecError

LONGEST_PERIOD = 1800.0


def replica_cost(spec: Mapping[str, Any]) -> float | None:
    """Of one replica, all its pods, for an hour; None when it is not known."""
    price = (spec.get("cost") or {}).get("perAcceleratorHour")
    return None if price is None else float(price) * max(1, accelerators(spec)) * nodes(spec)


SCALING_RULES = (
    Rule(
        (),
        "spec.scaling.warmSpares",
        "!(has(self.scaling) && has(self.scaling.warmSpares) && self.scaling.warmSpares > 0"
        " && has(self.engine) && has(self.engine.apiKeySecretRef))",
        "the operator has none of the keys that spec.engine.apiKeySecretRef asks for, and could not wake a spare; let the"
        " gateway check keys instead",
        lambda spec: (
            not (spec.get("scaling") or {}).get("warmSpares") or "apiKeySecretRef" not in (spec.get("engine") or {})
        ),
    ),
    Rule(
        (),
        "spec.scaling.warmSpares",
        "!(has(self.scaling) && has(self.scaling.warmSpares) && self.scaling.warmSpares > 0"
        " && has(self.engine) && has(self.engine.runtime) && self.engine.runtime != 'pagefleet')",
        "needs spec.engine.runtime pagefleet: other engines are not put to sleep",
        lambda spec: not (spec.get("scaling") or {}).get("warmSpares") or is_ours(spec),
    ),
    Rule(
        (),
        "spec.scaling.warmSpares",
        "!(has(self.scaling) && has(self.scaling.warmSpares) && self.scaling.warmSpares > 0"
        " && has(self.engine) && has(self.engine.nodes) && self.engine.nodes > 1)",
        "needs replicas of one pod: spec.engine.nodes 1",
        lambda spec: not (spec.get("scaling") or {}).get("warmSpares") or nodes(spec) == 1,
    ),
    Rule(
        ("scaling",),
        "spec.scaling.min",
        "self.min <= self.max",
        "must not be above spec.scaling.max",
        lambda scaling: scaling["min"] <= scaling["max"],
    ),
    Rule(
        ("scaling",),
        "spec.scaling.min",
        "self.min > 0 || has(self.idleToZero) || self.mode == 'external'",
        "0 needs spec.scaling.idleToZero, which says when; or spec.scaling.mode external",
        lambda scaling: scaling["min"] > 0 or "idleToZero" in scaling or scaling["mode"] == "external",
    ),
    Rule(
        ("scaling",),
        "spec.scaling.mode",
        "self.mode != 'external' || !(has(self.idleToZero) || has(self.schedule))",
        "external leaves replicas to somebody else: remove idleToZero and schedule",
        lambda scaling: scaling["mode"] != "external" or not ("idleToZero" in scaling or "schedule" in scaling),
    ),
    Rule(
        ("scaling",),
        "spec.scaling.schedule",
        "!has(self.schedule) || self.schedule.all(e, has(e.min) || has(e.max))",
        "each entry must have min or max",
        lambda scaling: all("min" in entry or "max" in entry for entry in scaling.get("schedule") or ()),
    ),
    Rule(
        ("scaling",),
        "spec.scaling.schedule",
        "!has(self.schedule) || self.schedule.all(e, (!has(e.min) || e.min <= self.max)"
        " && (!has(e.min) || !has(e.max) || e.min <= e.max))",
        "no min may be above its entry's max or spec.scaling.max",
        lambda scaling: all(
            entry.get("min", 0) <= min(scaling["max"], entry.get("max", scaling["max"]))
            for entry in scaling.get("schedule") or ()
        ),
    ),
    Rule(
        ("cost",),
        "spec.cost.ceilingPerHour",
        "!has(self.ceilingPerHour) || has(self.perAcceleratorHour)",
        "needs spec.cost.perAcceleratorHour",
        lambda cost: "ceilingPerHour" not in cost or "perAcceleratorHour" in cost,
    ),
)


def scaling_errors(spec: Mapping[str, Any]) -> Iterator[SpecError]:
    """Errors of a spec whose structure and rules hold: cron texts, time zones, amounts that hang together."""
    scaling: Mapping[str, Any] = spec.get("scaling") or {}
    for index, entry in enumerate(scaling.get("schedule") or ()):
        for field, message in schedule.errors(entry["cron"], entry["timeZone"]):
            yield SpecError(f"spec.scaling.schedule[{index}].{field}", message)
    for direction in ("scaleUp", "scaleDown"):
        for index, policy in enumerate((scaling.get(direction) or {}).get("policies") or ()):
            where = f"spec.scaling.{direction}.policies[{index}]"
            if not 0 < schedule.seconds(policy["period"]) <= LONGEST_PERIOD:
                yield SpecError(f"{where}.period", "must be above 0s and at most 30m")
            if direction == "scaleDown" and policy["type"] == "Percent" and policy["value"] > 100:
                yield SpecError(f"{where}.value", "must be at most 100 percent")
    each, ceiling = replica_cost(spec), (spec.get("cost") or {}).get("ceilingPerHour")
    least = max(1, int(scaling.get("min", 1))) + int(scaling.get("warmSpares", 0))
    if each is not None and ceiling is not None and each * least > ceiling:
        yield SpecError(
            "spec.cost.ceilingPerHour",
            f"must be at least {each * least:g}, what spec.scaling.min replicas and warm spares cost",
        )
