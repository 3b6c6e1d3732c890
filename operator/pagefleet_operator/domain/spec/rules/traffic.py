"""Rules of `.spec.traffic`."""

from __future__ import annotations

from pagefleet_operator.domain.spec.rules.rule import Rule


def _at_most_a_day(name: str) -> Rule:
    return Rule(
        ("traffic",),
        f"spec.traffic.{name}",
        f"!has(self.{name}) || (duration(self.{name}) > duration('0s') && duration(self.{name}) <= duration('24h'))",
        "must be above 0 and at most 24h",
    )


def _within_timeout(name: str) -> Rule:
    return Rule(
        ("traffic",),
        f"spec.traffic.{name}",
        f"!has(self.{name}) || !has(self.timeout) || duration(self.{name}) <= duration(self.timeout)",
        "must not be above spec.traffic.timeout",
    )


def _within_queue(name: str) -> Rule:
    bound = f"self.queue.{name}"
    return Rule(
        ("traffic",),
        "spec.traffic.priorities",
        f"!has(self.priorities) || !has(self.queue) || !has({bound}) "
        f"|| self.priorities.all(p, !has(p.queue) || !has(p.queue.{name}) || p.queue.{name} <= {bound})",
        f"no queue.{name} may be above spec.traffic.queue.{name}, which bounds all classes together",
    )


TRAFFIC_RULES = (
    _at_most_a_day("timeout"),
    _at_most_a_day("firstTokenTimeout"),
    _at_most_a_day("nextTokenTimeout"),
    _within_timeout("firstTokenTimeout"),
    _within_timeout("nextTokenTimeout"),
    Rule(
        ("traffic", "queue"),
        "spec.traffic.queue.timeout",
        "!has(self.timeout) || (duration(self.timeout) > duration('0s') && duration(self.timeout) <= duration('5m'))",
        "must be above 0 and at most 5m",
    ),
    Rule(
        ("traffic",),
        "spec.traffic.priorities",
        "!has(self.priorities) || self.priorities.all(a, self.priorities.exists_one(b, b.name == a.name))",
        "no name may come twice",
    ),
    Rule(
        ("traffic",),
        "spec.traffic.priorities",
        "!has(self.priorities) || self.priorities.all(p, !has(p.queue) || !has(p.queue.timeout) "
        "|| (duration(p.queue.timeout) > duration('0s') && duration(p.queue.timeout) <= duration('5m')))",
        "each queue.timeout must be above 0 and at most 5m",
    ),
    _within_queue("maxRequests"),
    _within_queue("maxBytes"),
    Rule(
        ("traffic",),
        "spec.traffic.rateLimits",
        "!has(self.rateLimits) || self.rateLimits.all(l, has(l.requestsPerMinute) || has(l.tokensPerMinute))",
        "each needs requestsPerMinute or tokensPerMinute",
    ),
    Rule(
        ("traffic",),
        "spec.traffic.gatewayAPI",
        "!has(self.provider) || self.provider != 'GatewayAPI' || has(self.gatewayAPI)",
        "is required for provider GatewayAPI",
    ),
    Rule(
        ("traffic",),
        "spec.traffic.gatewayAPI",
        "!has(self.gatewayAPI) || (has(self.provider) && self.provider == 'GatewayAPI')",
        "belongs to provider GatewayAPI; remove it",
    ),
)

# At the object's root, where a rule sees the object's own name. Without CEL domain/traffic/fallback.py states it in a
# condition.
OWN_FALLBACK_CEL = (
    "!has(self.spec.traffic) || !has(self.spec.traffic.fallback) "
    "|| self.spec.traffic.fallback.service != self.metadata.name"
)
OWN_FALLBACK = "spec.traffic.fallback.service: must name another service"
