"""Rules of `.spec.capacityPlan`."""

from __future__ import annotations

from pagefleet_operator.domain.spec.rules.rule import Rule, given

AT = ("capacityPlan",)
COMPARED = (
    "requestsPerSecond",
    "perRequest.outputTokens",
    "perRequest.kvTokens",
    "perReplica.outputTokensPerSecond",
    "perReplica.kvCacheTokens",
)

CAPACITY_PLAN_RULES = (
    Rule(
        AT,
        "spec.capacityPlan",
        " || ".join(f"({given(path)})" for path in COMPARED),
        f"needs a number that can be compared: {', '.join(COMPARED[:-1])} or {COMPARED[-1]}",
    ),
    Rule(
        AT,
        "spec.capacityPlan.tolerance",
        "!has(self.tolerance) || self.tolerance.matches('[1-9]')",
        "must be above 0%: two measurements are never quite the same",
    ),
    Rule(
        AT,
        "spec.capacityPlan.perReplica",
        "!has(self.perReplica) || has(self.perReplica.concurrency) == has(self.perReplica.outputTokensPerSecond)",
        "concurrency and outputTokensPerSecond need each other: a replica generates more with more requests at once",
    ),
    Rule(
        AT,
        "spec.capacityPlan.perReplica.peakOutputTokensPerSecond",
        "!has(self.perReplica) || !has(self.perReplica.peakOutputTokensPerSecond) || (has(self.perReplica.outputTokensPerSecond)"
        " && double(self.perReplica.peakOutputTokensPerSecond) >= double(self.perReplica.outputTokensPerSecond))",
        "needs outputTokensPerSecond, and must not be below it",
    ),
    Rule(
        AT,
        "spec.capacityPlan.perRequest.sharedTokens",
        "!has(self.perRequest) || !has(self.perRequest.sharedTokens) || has(self.perRequest.kvTokens)",
        "needs kvTokens: the tokens that a request holds beside the shared ones",
    ),
)
