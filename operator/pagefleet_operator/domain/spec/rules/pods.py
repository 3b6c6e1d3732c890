"""Rules of what pods are made of: the engine's variables, and `.spec.pod`."""

from __future__ import annotations

from pagefleet_operator.domain.spec.rules.rule import Rule

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
)
