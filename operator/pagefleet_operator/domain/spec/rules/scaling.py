"""Rules of `.spec.scaling` and `.spec.cost`."""

from __future__ import annotations

from collections.abc import Iterator

from pagefleet_operator.domain.runtimes.catalog import REGISTRY
from pagefleet_operator.domain.spec.rules.rule import RUNTIME, Rule, given, listed

SPARED = "has(self.scaling) && has(self.scaling.warmSpares) && self.scaling.warmSpares > 0"
ABLE = {engine.name: engine.sleep for engine in REGISTRY.values() if engine.sleep is not None}


def _asleep() -> Iterator[Rule]:
    """Which engines can be warm spares, and on which accelerators."""
    message = f"needs spec.engine.runtime {' or '.join(ABLE)}: other engines are not put to sleep"
    yield Rule((), "spec.scaling.warmSpares", f"!({SPARED}) || {RUNTIME} in {listed(ABLE)}", message)
    for name, sleep in ABLE.items():
        if sleep.accelerators:
            fits = " || ".join(f"self.resources.accelerator.name.startsWith('{one}')" for one in sleep.accelerators)
            cel = f"!({SPARED}) || {RUNTIME} != '{name}' || ({given('resources.accelerator')} && ({fits}))"
            kinds = " or ".join(f"{one}..." for one in sleep.accelerators)
            message = f"needs spec.resources.accelerator of a name {kinds} with runtime {name}, which sleeps on no other device"
            yield Rule((), "spec.scaling.warmSpares", cel, message)


SCALING_RULES = (
    Rule(
        (),
        "spec.scaling.warmSpares",
        f"!({SPARED} && {given('engine.apiKeySecretRef')})",
        "does not go with spec.engine.apiKeySecretRef: the operator has no key to wake a spare with; let the gateway check"
        " keys instead",
    ),
    *_asleep(),
    Rule(
        (),
        "spec.scaling.warmSpares",
        f"!({SPARED} && {given('engine.nodes')} && self.engine.nodes > 1)",
        "needs replicas of one pod: spec.engine.nodes 1",
    ),
    Rule(
        (),
        "spec.scaling.warmSpares",
        f"!({SPARED} && {given('engine.disaggregation')})",
        "does not go with spec.engine.disaggregation: other pods' engines know where this one's KV pages lie, and sleep gives these back",
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
        "self.mode != 'external' || !(has(self.idleToZero) || has(self.schedule) || has(self.headroom))",
        "external leaves the replicas to another controller: remove idleToZero, schedule and headroom",
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
