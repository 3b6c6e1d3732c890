"""Rules of `.spec.scaling` and `.spec.cost`."""

from __future__ import annotations

from pagefleet_operator.domain.spec.rules.rule import Rule

SCALING_RULES = (
    Rule(
        (),
        "spec.scaling.warmSpares",
        "!(has(self.scaling) && has(self.scaling.warmSpares) && self.scaling.warmSpares > 0"
        " && has(self.engine) && has(self.engine.apiKeySecretRef))",
        "does not go with spec.engine.apiKeySecretRef: the operator has no key to wake a spare with; let the gateway check"
        " keys instead",
    ),
    Rule(
        (),
        "spec.scaling.warmSpares",
        "!(has(self.scaling) && has(self.scaling.warmSpares) && self.scaling.warmSpares > 0"
        " && has(self.engine) && has(self.engine.runtime) && self.engine.runtime != 'pagefleet')",
        "needs spec.engine.runtime pagefleet: other engines are not put to sleep",
    ),
    Rule(
        (),
        "spec.scaling.warmSpares",
        "!(has(self.scaling) && has(self.scaling.warmSpares) && self.scaling.warmSpares > 0"
        " && has(self.engine) && has(self.engine.nodes) && self.engine.nodes > 1)",
        "needs replicas of one pod: spec.engine.nodes 1",
    ),
    Rule(
        ("scaling",),
        "spec.scaling.min",
        "self.min <= self.max",
        "must not be above spec.scaling.max",
    ),
    Rule(
        ("scaling",),
        "spec.scaling.min",
        "self.min > 0 || has(self.idleToZero) || self.mode == 'external'",
        "0 needs spec.scaling.idleToZero (the idle time before), or spec.scaling.mode external",
    ),
    Rule(
        ("scaling",),
        "spec.scaling.mode",
        "self.mode != 'external' || !(has(self.idleToZero) || has(self.schedule))",
        "external leaves the replicas to another controller: remove idleToZero and schedule",
    ),
    Rule(
        ("scaling",),
        "spec.scaling.schedule",
        "!has(self.schedule) || self.schedule.all(e, has(e.min) || has(e.max))",
        "each entry must have min or max",
    ),
    Rule(
        ("scaling",),
        "spec.scaling.schedule",
        "!has(self.schedule) || self.schedule.all(e, (!has(e.min) || e.min <= self.max)"
        " && (!has(e.min) || !has(e.max) || e.min <= e.max))",
        "no min may be above its entry's max or spec.scaling.max",
    ),
    Rule(
        ("cost",),
        "spec.cost.ceilingPerHour",
        "!has(self.ceilingPerHour) || has(self.perAcceleratorHour)",
        "needs spec.cost.perAcceleratorHour",
    ),
    Rule(
        ("cost",),
        "spec.cost.budget",
        "!has(self.budget) || has(self.perAcceleratorHour)",
        "needs spec.cost.perAcceleratorHour",
    ),
    Rule(
        (),
        "spec.cost.budget.shed",
        "!(has(self.cost) && has(self.cost.budget) && has(self.cost.budget.shed)) || self.cost.budget.shed.all(n,"
        " has(self.traffic) && has(self.traffic.priorities) && self.traffic.priorities.exists(p, p.name == n))",
        "each must be a name of spec.traffic.priorities",
    ),
)
