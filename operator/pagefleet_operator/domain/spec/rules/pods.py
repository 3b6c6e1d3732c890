"""Rules of what pods are made of: the engine's variables, `.spec.pod`, and how replicas are spread."""

from __future__ import annotations

from pagefleet_operator.domain.spec.rules.rule import Rule, given

SPREAD = "self.topologySpreadConstraints"
# In CEL: whether the spec has accelerators, and whether any of them come from a claim.
ACCELERATED = given("resources.accelerator")
CLAIMED = f"{given('pod.resourceClaims')} && self.pod.resourceClaims.exists(c, has(c.accelerators) && c.accelerators)"

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
        ("engine",),
        "spec.engine.env",
        "!has(self.env) || self.env.all(a, self.env.exists_one(b, b.name == a.name))",
        "no name may come twice",
    ),
    Rule(
        ("pod",),
        "spec.pod.imagePullSecrets",
        "!has(self.imagePullSecrets) || "
        "self.imagePullSecrets.all(a, self.imagePullSecrets.exists_one(b, b.name == a.name))",
        "no name may come twice",
    ),
    Rule(
        ("pod",),
        "spec.pod.priorityClassName",
        "!has(self.priorityClassName) || !self.priorityClassName.startsWith('system-')",
        "system-cluster-critical and system-node-critical are for the cluster's own pods; use a class of your own",
    ),
    Rule(
        ("pod",),
        "spec.pod.resourceClaims",
        "!has(self.resourceClaims) || "
        "self.resourceClaims.all(c, has(c.resourceClaimName) != has(c.resourceClaimTemplateName))",
        "each entry needs resourceClaimName or resourceClaimTemplateName, and not both",
    ),
    Rule(
        ("pod",),
        "spec.pod.resourceClaims",
        "!has(self.resourceClaims) || self.resourceClaims.all(a, self.resourceClaims.exists_one(b, b.name == a.name))",
        "no name may come twice",
    ),
    Rule(
        (),
        "spec.pod.resourceClaims",
        f"!({ACCELERATED}) || !({given('pod.resourceClaims')}) || self.pod.resourceClaims.all(c, has(c.accelerators))",
        "each entry must have accelerators beside spec.resources.accelerator: true where these devices come from the claim, so "
        "that pods do not ask for the extended resource as well",
    ),
    Rule(
        (),
        "spec.resources.accelerator",
        f"!({CLAIMED}) || ({ACCELERATED})",
        "is required where spec.pod.resourceClaims gives accelerators: its name and count tell the engine what the claim gives",
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
