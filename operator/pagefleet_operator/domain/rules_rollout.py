"""Rules within `.spec.rollout`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_operator.domain.rule import Rule

STEP_KINDS = ("weight", "pause", "mirror", "loadTest")


def weights(rollout: Mapping[str, Any]) -> list[int]:
    return [step["weight"] for step in rollout.get("steps") or () if "weight" in step]


ROLLOUT_RULES = (
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
        lambda rollout: len(set(weights(rollout))) == len(weights(rollout)),
    ),
)
