"""Rules of what pods are made of: the engine's variables, `.spec.pod`, and how replicas are spread."""

from __future__ import annotations

from collections.abc import Iterable

from pagefleet_operator.domain.spec.rules.rule import Rule, given, listed

SPREAD = "self.topologySpreadConstraints"
# In CEL: whether the spec has accelerators, and whether any of them come from a claim.
ACCELERATED = given("resources.accelerator")
CLAIMED = f"{given('pod.resourceClaims')} && self.pod.resourceClaims.exists(c, has(c.accelerators) && c.accelerators)"

# Names by which gang schedulers know the pods of one group. The same template makes the pods of every replica.
KUEUE_GROUP = ("kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count")
OTHER_GROUPS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name", "scheduling.x-k8s.io/pod-group")


def named(names: Iterable[str], of: str) -> str:
    """In CEL: whether the labels or annotations of a `spec.pod` have one of the names. `of` is that pod."""
    return " || ".join(
        f"(has({of}.{kind}) && {of}.{kind}.exists(n, n in {listed(names)}))" for kind in ("labels", "annotations")
    )


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
        "spec.pod",
        f"!({named(KUEUE_GROUP, 'self')})",
        f"{' and '.join(KUEUE_GROUP)} would make one group of the pods of all replicas and revisions, of which Kueue deletes those "
        "beyond the count; give the label kueue.x-k8s.io/queue-name, and Kueue makes a group of each replica",
    ),
    Rule(
        (),
        "spec.pod",
        f"!({given('engine.nodes')} && self.engine.nodes > 1 && has(self.pod)) || !({named(OTHER_GROUPS, 'self.pod')})",
        f"{', '.join(OTHER_GROUPS)} would make one group of the pods of all replicas; with spec.engine.nodes above 1 LeaderWorkerSet "
        "names a group for each replica",
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
