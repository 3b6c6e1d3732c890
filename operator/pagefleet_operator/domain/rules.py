"""Rules that cross fields, each in CEL (for the CRD) and in Python (for the operator); a test holds them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_operator.domain.structure import SpecError

STEP_KINDS = ("weight", "pause", "mirror", "loadTest")


@dataclass(frozen=True)
class Rule:
    """`at` is the path below spec that `cel`'s `self` and `holds`' argument are; `field` is what an error names."""

    at: tuple[str, ...]
    field: str
    cel: str
    message: str
    holds: Callable[[Any], bool]


def _weights(rollout: Mapping[str, Any]) -> list[int]:
    return [step["weight"] for step in rollout.get("steps") or () if "weight" in step]


RULES = (
    Rule(
        ("scaling",),
        "spec.scaling.min",
        "self.min <= self.max",
        "must not be above spec.scaling.max",
        lambda scaling: scaling["min"] <= scaling["max"],
    ),
    Rule(
        ("rollout",),
        "spec.rollout.steps",
        "!has(self.steps) || self.steps.all(s, (has(s.weight) ? 1 : 0) + (has(s.pause) ? 1 : 0)"
        " + (has(s.mirror) ? 1 : 0) + (has(s.loadTest) ? 1 : 0) == 1)",
        "each step must have exactly one of weight, pause, mirror, loadTest",
        lambda rollout: all(sum(kind in step for kind in STEP_KINDS) == 1 for step in rollout.get("steps") or ()),
    ),
    Rule(
        ("rollout",),
        "spec.rollout.steps",
        "!has(self.steps) || self.steps.all(s, !has(s.hold) || has(s.weight))",
        "hold belongs to a step with a weight",
        lambda rollout: all("weight" in step for step in rollout.get("steps") or () if "hold" in step),
    ),
    Rule(
        ("rollout",),
        "spec.rollout.steps",
        "!has(self.steps) || self.steps.filter(s, has(s.weight)).map(s, s.weight)"
        ".all(w, self.steps.filter(s, has(s.weight) && s.weight == w).size() == 1)",
        "no weight may come twice",
        lambda rollout: len(set(_weights(rollout))) == len(_weights(rollout)),
    ),
)


def check(spec: Mapping[str, Any]) -> list[SpecError]:
    """Errors of a spec whose structure holds and whose defaults are filled in."""
    errors = []
    for rule in RULES:
        part: Any = spec
        for name in rule.at:
            part = part.get(name) if isinstance(part, Mapping) else None
        if part is not None and not rule.holds(part):
            errors.append(SpecError(rule.field, rule.message))
    weights = _weights(spec.get("rollout") or {})
    if weights != sorted(weights):
        errors.append(SpecError("spec.rollout.steps", f"weights must rise, not {', '.join(map(str, weights))}"))
    return errors
