"""Rules within `.spec.rollout`."""

from __future__ import annotations

from pagefleet_operator.domain.spec.rules.rule import Rule

ROLLOUT_RULES = (
    Rule(
        ("rollout",),
        "spec.rollout.steps",
        "!has(self.steps) || self.steps.all(s, (has(s.weight) ? 1 : 0) + (has(s.pause) ? 1 : 0)"
        " + (has(s.preview) ? 1 : 0) + (has(s.mirror) ? 1 : 0) + (has(s.loadTest) ? 1 : 0) == 1)",
        "each step must have exactly one of weight, pause, preview, mirror, loadTest",
    ),
    Rule(
        ("rollout",),
        "spec.rollout.steps",
        "!has(self.steps) || self.steps.all(s, !has(s.hold) || has(s.weight) || has(s.mirror))",
        "hold belongs to a step with weight or mirror",
    ),
    Rule(
        ("rollout",),
        "spec.rollout.steps",
        "!has(self.steps) || self.steps.all(s, !has(s.minRequests) || has(s.weight))",
        "minRequests belongs to a step with a weight",
    ),
    Rule(
        ("rollout",),
        "spec.rollout.steps",
        "!has(self.steps) || !self.steps.exists(s, has(s.preview)) || (has(self.route) && has(self.route.header))",
        "preview needs spec.rollout.route.header: nothing else reaches a canary without weight",
    ),
    Rule(
        ("rollout",),
        "spec.rollout.guard.promql",
        "!has(self.guard) || !has(self.guard.promql) || self.guard.promql.all(g, has(g.min) || has(g.max))",
        "each gate must have min or max",
    ),
    Rule(
        ("rollout",),
        "spec.rollout.guard.promql",
        "!has(self.guard) || !has(self.guard.promql) || "
        "self.guard.promql.all(g, self.guard.promql.exists_one(h, h.name == g.name))",
        "no name may come twice",
    ),
    Rule(
        ("rollout",),
        "spec.rollout.steps",
        "!has(self.steps) || self.steps.filter(s, has(s.weight)).map(s, s.weight)"
        ".all(w, self.steps.filter(s, has(s.weight) && s.weight == w).size() == 1)",
        "no weight may come twice",
    ),
)
