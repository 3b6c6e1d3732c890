"""The structure of `.spec.slo` and `.spec.owner`, and their typed values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_contract.names import OBJECT_NAME
from pagefleet_contract.quantity import fraction, seconds
from pagefleet_contract.slo import (
    DEFAULT_QUANTILE,
    DEFAULT_WINDOW,
    ERRORS,
    LATENCIES,
    MAX_OBJECTIVES,
    Objective,
    objectives,
)
from pagefleet_operator.domain.spec.schema.fields import array, choice, integer, keyed, number, part, record, text
from pagefleet_operator.domain.spec.schema.patterns import DAYS, LABEL_VALUE, WEB_ADDRESS

LONGEST = 1024  # characters of an address

AT_RISK = record(
    "What is given up while a promise is about to break: more requests miss it than may, and little of its error budget is left or the "
    "rest is gone within an hour. The condition SLOMet says so.",
    {
        "left": part("The part of an error budget below which its promise is about to break; 10% when omitted."),
        "shed": array(
            "Names of traffic.priorities, such as batch, whose requests the gateways refuse meanwhile.",
            text("The name of a class of requests.", pattern=OBJECT_NAME, longest=63),
            16,
        ),
        "maxOutputTokens": integer("The most new tokens that any answer may have meanwhile.", 1, 1_000_000),
    },
)

SLO_SCHEMA = record(
    "What the service promises its clients. The gateways count every request that misses; the condition SLOMet, alerts and "
    "the status page show the error budget that is left.",
    {
        "window": text(
            "The rolling window of the error budgets, from 1d to 90d.", pattern=DAYS, longest=3, default=DEFAULT_WINDOW
        ),
        "atRisk": AT_RISK,
        "objectives": keyed(
            "The promises that the service makes.",
            "name",
            record(
                "A promise about all requests, or about those of one priority.",
                {
                    "name": text(
                        "The name of the promise in the status, metrics and alerts.", pattern=OBJECT_NAME, longest=63
                    ),
                    "signal": choice(
                        "A latency as clients see it, the time in the gateway's queue included; or errors.",
                        (*LATENCIES, ERRORS),
                    ),
                    "quantile": number(
                        f"For a latency: the share of requests within `seconds`. Omitted: {DEFAULT_QUANTILE:g}.",
                        0.5,
                        0.9999,
                    ),
                    "seconds": number("For a latency: the bound.", 0.001, 86400),
                    "maxRate": part("For errors: the share of requests that may fail, above 0%."),
                    "priority": text(
                        "A name of traffic.priorities: only its requests count. Omitted: all requests count.",
                        pattern=OBJECT_NAME,
                        longest=63,
                    ),
                },
                ("name", "signal"),
            ),
            MAX_OBJECTIVES,
            minItems=1,
        ),
    },
    ("objectives",),
)

OWNER_SCHEMA = record(
    "Who is responsible. It is shown with the service, and is in the labels and annotations of its alerts.",
    {
        "team": text("The team; the label `team` of alerts, to route them by.", pattern=LABEL_VALUE, longest=63),
        "contact": text("Where to reach it, such as a channel, an address or a pager."),
        "runbook": text("The address of its runbook for this service.", pattern=WEB_ADDRESS, longest=LONGEST),
    },
)


@dataclass(frozen=True)
class AtRisk:
    """What is given up while less than `left` of an error budget is there; `max_output_tokens` 0: no cap."""

    left: float
    shed: tuple[str, ...] = ()
    max_output_tokens: int = 0


@dataclass(frozen=True)
class SLO:
    """`window` in seconds."""

    window: float = 0.0
    objectives: tuple[Objective, ...] = ()
    at_risk: AtRisk | None = None


@dataclass(frozen=True)
class Owner:
    """An empty text where a field is not given."""

    team: str = ""
    contact: str = ""
    runbook: str = ""

    @property
    def sentence(self) -> str:
        """The owner for people, "" without any."""
        who = ", ".join(text for text in (self.team, self.contact) if text)
        parts = [f"owner: {who}"] if who else []
        return "; ".join([*parts, *([f"runbook: {self.runbook}"] if self.runbook else [])])


def slo(raw: Mapping[str, Any]) -> SLO:
    """From `spec.slo` with its defaults filled in; {} where it is not given."""
    return SLO(seconds(raw["window"]), objectives(raw), _at_risk(raw.get("atRisk"))) if raw else SLO()


def _at_risk(raw: Mapping[str, Any] | None) -> AtRisk | None:
    if raw is None:
        return None
    return AtRisk(fraction(raw.get("left", "10%")), tuple(raw.get("shed") or ()), raw.get("maxOutputTokens", 0))


def owner(spec: object) -> Owner:
    """From a spec that may be invalid: whoever is responsible must hear of that too. Total."""
    raw = spec.get("owner") if isinstance(spec, Mapping) else None
    given = raw if isinstance(raw, Mapping) else {}
    values = (given.get(name) for name in ("team", "contact", "runbook"))
    team, contact, runbook = (value[:LONGEST] if isinstance(value, str) else "" for value in values)
    return Owner(team, contact, runbook if re.match(WEB_ADDRESS, runbook) else "")
