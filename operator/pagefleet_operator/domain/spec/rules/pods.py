"""Rules of what pods are made of: the engine's variables, `.spec.pod`, and how replicas are spread."""

from __future__ import annotations

from pagefleet_operator.domain.spec.rules.rule import Rule

SPREAD = "self.topologySpreadConstraints"

POD_RULES = (
    Rule(
        ("engine",),
        "spec.engine.env",
        "!has(self.env) || self.env.all(e, has(e.value) != has(e.valueFrom))",
        "each variable needs value or valueFrom, and not both",
    ),
    Rule(
        ("engine",),
        "spec.engine.env",
        "!has(self.env) || self.env.all(e, !has(e.valueFrom) || "
        "has(e.valueFrom.secretKeyRef) != has(e.valueFrom.configMapKeyRef))",
        "each valueFrom needs secretKeyRef or configMapKeyRef, and not both",
    ),
    Rule(
        ("pod",),
        "spec.pod.priorityClassName",
        "!has(self.priorityClassName) || !self.priorityClassName.startsWith('system-')",
        "system-cluster-critical and system-node-critical are for the cluster's own pods; use a class of your own",
    ),
    Rule(
        ("placement",),
        "spec.placement.topologySpreadConstraints",
        f"!has({SPREAD}) || {SPREAD}.all(c, !has(c.minDomains) || c.whenUnsatisfiable == 'DoNotSchedule')",
        "minDomains needs whenUnsatisfiable DoNotSchedule",
    ),
    Rule(
        ("placement",),
        "spec.placement.topologySpreadConstraints",
        f"!has({SPREAD}) || {SPREAD}.all(a, {SPREAD}.exists_one(b, b.topologyKey == a.topologyKey"
        " && b.whenUnsatisfiable == a.whenUnsatisfiable))",
        "no topologyKey may come twice with the same whenUnsatisfiable",
    ),
)
