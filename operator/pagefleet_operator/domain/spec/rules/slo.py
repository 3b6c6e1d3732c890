"""Rules of `.spec.slo`."""

from __future__ import annotations

from pagefleet_operator.domain.spec.rules.rule import Rule

SLO_RULES = (
    Rule(
        ("slo",),
        "spec.slo.objectives",
        "self.objectives.all(a, self.objectives.exists_one(b, b.name == a.name))",
        "no name may come twice",
    ),
    Rule(
        ("slo",),
        "spec.slo.objectives",
        "self.objectives.all(o, o.signal == 'errors' || (has(o.seconds) && !has(o.maxRate)))",
        "a latency needs seconds, and takes no maxRate",
    ),
    Rule(
        ("slo",),
        "spec.slo.objectives",
        "self.objectives.all(o, o.signal != 'errors' || (has(o.maxRate) && !has(o.seconds) && !has(o.quantile)))",
        "errors need maxRate, and take neither seconds nor quantile",
    ),
    Rule(
        ("slo",),
        "spec.slo.objectives",
        "self.objectives.all(o, !has(o.maxRate) || o.maxRate.matches('[1-9]'))",
        "maxRate must be above 0%: a promise that no request fails has no error budget",
    ),
    Rule(
        (),
        "spec.slo.objectives",
        "!has(self.slo) || self.slo.objectives.all(o, !has(o.priority) || (has(self.traffic) && has(self.traffic.priorities)"
        " && self.traffic.priorities.exists(p, p.name == o.priority)))",
        "priority must be a name of spec.traffic.priorities",
    ),
    Rule(
        ("slo",),
        "spec.slo.atRisk",
        "!has(self.atRisk) || has(self.atRisk.maxOutputTokens) || (has(self.atRisk.shed) && size(self.atRisk.shed) > 0)",
        "needs shed or maxOutputTokens",
    ),
    Rule(
        (),
        "spec.slo.atRisk.shed",
        "!(has(self.slo) && has(self.slo.atRisk) && has(self.slo.atRisk.shed)) || self.slo.atRisk.shed.all(n,"
        " has(self.traffic) && has(self.traffic.priorities) && self.traffic.priorities.exists(p, p.name == n))",
        "each must be a name of spec.traffic.priorities",
    ),
)
