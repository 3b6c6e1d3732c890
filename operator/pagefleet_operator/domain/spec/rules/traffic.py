"""Rules of `.spec.traffic` that cross fields, and what only the operator can check of header names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pagefleet_contract.headers import RESERVED_PREFIXES
from pagefleet_contract.quantity import seconds
from pagefleet_operator.domain.spec.rules.rule import Rule
from pagefleet_operator.domain.spec.schema.traffic import HEADER_NAME, MOST_HOLD_SECONDS
from pagefleet_operator.domain.spec.structure import SpecError

LONGEST = 86_400


def _between(name: str, most: str, message: str, most_seconds: float) -> Rule:
    return Rule(
        ("traffic",),
        f"spec.traffic.{name}",
        f"!has(self.{name}) || (duration(self.{name}) > duration('0s') && duration(self.{name}) <= duration('{most}'))",
        message,
        lambda traffic: name not in traffic or 0 < seconds(traffic[name]) <= most_seconds,
    )


def _within_timeout(name: str) -> Rule:
    return Rule(
        ("traffic",),
        f"spec.traffic.{name}",
        f"!has(self.{name}) || !has(self.timeout) || duration(self.{name}) <= duration(self.timeout)",
        "must not be above spec.traffic.timeout",
        lambda traffic: not {name, "timeout"} <= set(traffic) or seconds(traffic[name]) <= seconds(traffic["timeout"]),
    )


def _distinct(traffic: Mapping[str, Any]) -> bool:
    names = [entry["name"] for entry in traffic.get("priorities") or ()]
    return len(names) == len(set(names))


def _some_limit(traffic: Mapping[str, Any]) -> bool:
    return all("requestsPerMinute" in e or "tokensPerMinute" in e for e in traffic.get("rateLimits") or ())


POSITIVE = "must be above 0 and at most 24h"
TRAFFIC_RULES = (
    _between("timeout", "24h", POSITIVE, LONGEST),
    _between("firstTokenTimeout", "24h", POSITIVE, LONGEST),
    _between("nextTokenTimeout", "24h", POSITIVE, LONGEST),
    _within_timeout("firstTokenTimeout"),
    _within_timeout("nextTokenTimeout"),
    Rule(
        ("traffic", "queue"),
        "spec.traffic.queue.timeout",
        "!has(self.timeout) || (duration(self.timeout) > duration('0s') && duration(self.timeout) <= duration('5m'))",
        "must be above 0 and at most 5m",
        lambda queue: "timeout" not in queue or 0 < seconds(queue["timeout"]) <= MOST_HOLD_SECONDS,
    ),
    Rule(
        ("traffic",),
        "spec.traffic.priorities",
        "!has(self.priorities) || self.priorities.all(a, self.priorities.exists_one(b, b.name == a.name))",
        "no name may come twice",
        _distinct,
    ),
    Rule(
        ("traffic",),
        "spec.traffic.rateLimits",
        "!has(self.rateLimits) || self.rateLimits.all(l, has(l.requestsPerMinute) || has(l.tokensPerMinute))",
        "each needs requestsPerMinute or tokensPerMinute",
        _some_limit,
    ),
    Rule(
        ("traffic",),
        "spec.traffic.gatewayAPI",
        "!has(self.provider) || self.provider != 'GatewayAPI' || has(self.gatewayAPI)",
        "is required for provider GatewayAPI",
        lambda traffic: traffic.get("provider") != "GatewayAPI" or "gatewayAPI" in traffic,
    ),
    Rule(
        ("traffic",),
        "spec.traffic.gatewayAPI",
        "!has(self.gatewayAPI) || (has(self.provider) && self.provider == 'GatewayAPI')",
        "belongs to provider GatewayAPI; remove it",
        lambda traffic: "gatewayAPI" not in traffic or traffic.get("provider") == "GatewayAPI",
    ),
)

# At the object's root, where a rule sees the object's own name. Without CEL fallbacks.py says it in a condition.
OWN_FALLBACK_CEL = (
    "!has(self.spec.traffic) || !has(self.spec.traffic.fallback) "
    "|| self.spec.traffic.fallback.service != self.metadata.name"
)
OWN_FALLBACK = "spec.traffic.fallback.service: must name another service"


def header_errors(traffic: Mapping[str, Any]) -> Iterator[SpecError]:
    """Names that no request can have. Not in the CRD: CEL's cost over the keys of a map has no bound."""
    for index, entry in enumerate(traffic.get("priorities") or ()):
        for name in entry["header"]:
            where = f"spec.traffic.priorities[{index}].header"
            if not re.search(HEADER_NAME, name):
                yield SpecError(where, f"{name[:60]!r} is not a header's name: letters, digits and - are")
            yield from _reserved(where, name)
    for index, entry in enumerate(traffic.get("rateLimits") or ()):
        yield from _reserved(f"spec.traffic.rateLimits[{index}].header", entry["header"])
    tenant = (traffic.get("queue") or {}).get("tenantHeader", "")
    yield from _reserved("spec.traffic.queue.tenantHeader", tenant)


def _reserved(where: str, name: str) -> Iterator[SpecError]:
    if name.lower().startswith(RESERVED_PREFIXES):
        yield SpecError(
            where, f"{name[:60]!r}: the gateway removes headers that begin with {', '.join(RESERVED_PREFIXES)}"
        )
