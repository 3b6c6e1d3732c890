"""The structure of `.spec`: types, enums, bounds, defaults, descriptions. One source for the CRD and for the operator's
own check of objects that were stored without it. What crosses fields is in `rules`, what has no behaviour yet in
`support`.
"""

from __future__ import annotations

from pagefleet_operator.domain.fields import (
    OPEN,
    QUANTITY,
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
from pagefleet_operator.domain.schema_engine import ENGINE, MODEL

SIGNALS = ("ttft", "itl", "tpot", "e2e", "queue")

RESOURCES = record(
    "What a replica needs of a node.",
    {
        "accelerator": record(
            "An extended resource.",
            {
                "name": text("Its name, such as nvidia.com/gpu.", pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$"),
                "count": integer("How many for each replica.", 1, 64, default=1),
            },
            ("name",),
        ),
        "cpu": text("CPU request; also the engine's threads, rounded up.", pattern=QUANTITY, longest=16, default="1"),
        "memory": text("Memory request and limit.", pattern=QUANTITY, longest=16, default="4Gi"),
    },
)

PLACEMENT = record(
    "Where replicas may run.",
    {
        "nodeSelector": table("Labels a node must have."),
        "tolerations": array(
            "Taints to tolerate.", {"type": "object", "description": "A core/v1 Toleration.", **OPEN}, 32
        ),
        "topologySpread": {"type": "boolean", "description": "Spread replicas over nodes.", "default": True},
    },
)

SCALING = record(
    "Replicas, by queue depth and free KV pages.",
    {
        "min": integer("Fewest replicas.", 0, 1000, default=1),
        "max": integer(
            "Most replicas of a revision; a canary's replicas come on top while a rollout lasts.",
            1,
            1000,
            default=1,
        ),
        "target": record(
            "What a replica should be kept at.",
            {
                "queueDepth": number("Waiting requests per replica.", 0.1, 100000, default=4),
                "freeKVPages": percent("Least share of free KV pages.", default="20%"),
            },
        ),
        "panic": record(
            "Reacting at once to a burst.",
            {
                "threshold": number("Wanted over ready replicas that starts a panic.", 1.1, 100, default=2),
                "window": duration("How long a panic lasts after its last cause.", default="60s"),
            },
        ),
        "scaleDown": record(
            "Shrinking.", {"stabilization": duration("The highest wish of this window wins.", default="5m")}
        ),
        "idleToZero": duration("Scale to zero after so long without a request."),
    },
)

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

TRAFFIC = record(
    "How requests reach the pods.",
    {
        "provider": choice("Who splits traffic.", ("Gateway", "GatewayAPI"), default="Gateway"),
        "timeout": duration("Longest time for a whole answer.", default="10m"),
        "retries": integer("Other pods tried before the first byte.", 0, 10, default=2),
        "circuitBreaker": {"type": "object", "description": "Limits per pod.", **OPEN},
        "priorities": array("Priority classes.", {"type": "object", "description": "A class.", **OPEN}, 16),
        "fallback": record("Another service when this one cannot answer.", {"service": text("Its name.")}),
    },
)

COST = record("What replicas cost.", {"perAcceleratorHour": number("In your currency.", 0, 1e6)})

SPEC = record(
    "What should run.",
    {
        "model": MODEL,
        "engine": ENGINE,
        "resources": RESOURCES,
        "placement": PLACEMENT,
        "scaling": SCALING,
        "rollout": ROLLOUT,
        "traffic": TRAFFIC,
        "cost": COST,
    },
    ("model",),
)
