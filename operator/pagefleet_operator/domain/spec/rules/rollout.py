"""Rules of `.spec.rollout`: its steps, by the table of their kinds, and its gates."""

from __future__ import annotations

from pagefleet_operator.domain.spec.rules.rule import Rule
from pagefleet_operator.domain.spec.schema.step_kinds import KIND_NAMES, OPTIONS, STEP_KINDS


def _steps(cel: str, message: str) -> Rule:
    return Rule(("rollout",), "spec.rollout.steps", f"!has(self.steps) || {cel}", message)


def _exactly_one_kind() -> Rule:
    count = " + ".join(f"(has(s.{kind}) ? 1 : 0)" for kind in STEP_KINDS)
    return _steps(f"self.steps.all(s, {count} == 1)", f"each step must have exactly one of {KIND_NAMES}")


def _option(name: str) -> Rule:
    kinds = [kind for kind, row in STEP_KINDS.items() if name in row.options]
    given = " || ".join(f"has(s.{kind})" for kind in kinds)
    return _steps(
        f"self.steps.all(s, !has(s.{name}) || {given})", f"{name} belongs to a step with {' or '.join(kinds)}"
    )


ROLLOUT_RULES = (
    _exactly_one_kind(),
    *map(_option, OPTIONS),
    *(
        _steps(f"!self.steps.exists(s, has(s.{kind})) || ({row.needs[0]})", f"{kind} needs {row.needs[1]}")
        for kind, row in STEP_KINDS.items()
        if row.needs
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
    _steps(
        "self.steps.filter(s, has(s.weight)).map(s, s.weight)"
        ".all(w, self.steps.filter(s, has(s.weight) && s.weight == w).size() == 1)",
        "no weight may come twice",
    ),
)
