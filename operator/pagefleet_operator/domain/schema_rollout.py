"""The structure of `.spec.rollout`."""

from __future__ import annotations

from pagefleet_operator.domain.fields import (
    OPEN,
    array,
    choice,
    duration,
    integer,
    number,
    percent,
    record,
    table,
    text,
)

SIGNALS = ("ttft", "itl", "tpot", "e2e", "queue")

STEP = record(
    "One step: exactly one of weight, pause, mirror, loadTest.",
    {
        "weight": integer("Percent of requests for the canary.", 1, 100),
        "hold": duration("How long a weight is held at least."),
        "pause": record("Wait.", {"duration": duration("How long; until resumed when omitted.")}),
        "mirror": percent("Share of requests copied to the canary."),
        "loadTest": {
            "type": "object",
            "description": "A synthetic load before users meet the canary.",
            **OPEN,
        },
    },
)

GUARD = record(
    "When a canary is rolled back.",
    {
        "latency": array(
            "Tests on requests against the concurrent stable revision.",
            record(
                "One signal.",
                {
                    "signal": choice("What is measured.", SIGNALS),
                    "quantile": number("Which quantile.", 0.5, 0.999, default=0.95),
                    "maxIncrease": percent("How much worse than stable is still accepted.", default="15%"),
                    "confidence": percent("Confidence of a conviction.", default="99%"),
                    "minRequests": integer("Fewest canary requests before it can pass.", 1, 1000000, default=200),
                },
                ("signal",),
            ),
            8,
        ),
        "errors": record("Failed requests.", {"maxRate": percent("Accepted share of failed requests.")}, ("maxRate",)),
        "warmupRequests": integer("First canary requests that do not count.", 0, 100000, default=5),
        "onInconclusive": choice(
            "What a step's deadline does without a verdict.", ("hold", "rollback"), default="hold"
        ),
        "deadline": duration("Longest wait for a step's verdict.", default="2h"),
    },
)

ROLLOUT = record(
    "How a new revision takes over. Omitted: 10 % and 50 % for 5 minutes each, with a TTFT p95 and an error guard.",
    {
        "steps": array("In this order; then the revision is promoted.", STEP, 32),
        "guard": GUARD,
        "afterPromotion": record(
            "After the last step.",
            {
                "watch": duration("Go on judging for so long."),
                "keepPrevious": duration("Keep the previous revision's replicas warm for so long."),
            },
        ),
        "alerts": record(
            "Alertmanager alerts that roll the canary back.",
            {"matchLabels": table("Labels an alert must carry (beside namespace and service).")},
            ("matchLabels",),
        ),
        "route": record(
            "Who meets the canary.",
            {
                "header": table("A request with one of these headers meets the canary, whatever the weight."),
                "stickyBy": text(
                    "header/<name>: requests with the same value stay with one revision.",
                    pattern=r"^header/[A-Za-z0-9-]+$",
                ),
            },
        ),
    },
)
