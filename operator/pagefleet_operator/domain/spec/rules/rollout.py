"""Rules within `.spec.rollout`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_operator.domain.spec.rules.rule import Rule

STEP_KINDS = ("weight", "pause", "preview", "mirror", "loadTest")


def weights(rollout: Mapping[str, Any]) -> list[int]:
    return [step["weight"] for step in rollout.get("steps") or () if "weight" in step]


def _gates(rollout: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list((rollout.get("guard") or {}).get("promql") or ())


ROLLOUT_RULES = (
    Rule(
        ("rollout",),
        "spec.rollout.steps",
        "!has(self.steps) || self.steps.all(s, (has(s.weight) ? 1 : 0) + (has(s.pause) ? 1 : 0)"
        " + (has(s.preview) ? 1 : 0) + (has(s.mirror) ? 1 : 0) + (has(s.loadTest) ? 1 : 0) == 1)",
        "each step must have exactly one of weight, pause, preview, mirror, loadTest",
        lambda rollout: all(sum(kind in step for kind in STEP_KINDS) == 1 for step in rollout.get("steps") or ()),
    ),
    Rule(
        ("rollout",),
        "spec.rollout.steps",
        "!has(self.steps) || self.steps.all(s, !has(s.hold) || has(s.weight) || has(s.mirror))",
        "hold belongs to a step with weight or mirror",
        lambda rollout: all(
            "weight" in step or "mirror" in step for step in rollout.get("steps") or () if "hold" in step
        ),
    ),
    Rule(
        ("rollout",),
        "spec.rollout.steps",
        "!has(self.steps) || self.steps.all(s, !has(s.minRequests) || has(s.weight))",
        "minRequests belongs to a step with a weight",
        lambda rollout: all("weight" in step for step in rollout.get("steps") or () if "minRequests" in step),
    ),
    Rule(
        ("rollout",),
        "spec.rollout.steps",
        "!has(self.steps) || !self.steps.exists(s, has(s.preview)) || (has(self.route) && has(self.route.header))",
        "preview needs spec.rollout.route.header: nothing else reaches a canary without weight",
        lambda rollout: (
            not any("preview" in step for step in rollout.get("steps") or ())
            or bool("header" in (rollout.get("route") or {}))
        ),
    ),
    Rule(
        ("rollout",),
        "spec.rollout.guard.promql",
        "!has(self.guard) || !has(self.guard.promql) || self.guard.promql.all(g, has(g.min) || has(g.max))",
        "each gate must have min or max",
        lambda rollout: all("min" in gate or "max" in gate for gate in _gates(rollout)),
    ),
    Rule(
        ("rollout",),
        "spec.rollout.guard.promql",
        "!has(self.guard) || !has(self.guard.promql) || "
        "self.guard.promql.all(g, self.guard.promql.exists_one(h, h.name == g.name))",
        "no name may come twice",
        lambda rollout: len({gate["name"] for gate in _gates(rollout)}) == len(_gates(rollout)),
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
