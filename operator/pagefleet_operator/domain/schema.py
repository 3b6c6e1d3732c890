"""The structure of `.spec`: types, enums, bounds, defaults, descriptions. One source for the CRD and for the operator's
own check of objects that were stored without it. What crosses fields is in `rules`, what has no behaviour yet in
`support`.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

DURATION = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
PERCENT = r"^[0-9]+(\.[0-9]+)?%$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"
SIGNALS = ("ttft", "itl", "tpot", "e2e", "queue")


def text(description: str, *, pattern: str | None = None, longest: int = 253, **more: Any) -> Schema:
    schema: Schema = {"type": "string", "description": description, "maxLength": longest, **more}
    if pattern:
        schema["pattern"] = pattern
    return schema


def choice(description: str, values: tuple[str, ...], **more: Any) -> Schema:
    return {"type": "string", "description": description, "enum": list(values), **more}


def integer(description: str, low: int, high: int, **more: Any) -> Schema:
    return {"type": "integer", "description": description, "minimum": low, "maximum": high, **more}


def number(description: str, low: float, high: float, **more: Any) -> Schema:
    return {"type": "number", "description": description, "minimum": low, "maximum": high, **more}


def duration(description: str, **more: Any) -> Schema:
    return text(f"{description} A duration such as 90s, 5m, 1h30m.", pattern=DURATION, longest=32, **more)


def percent(description: str, **more: Any) -> Schema:
    return text(f"{description} A percentage such as 15%.", pattern=PERCENT, longest=16, **more)


def record(description: str, properties: Schema, required: tuple[str, ...] = (), **more: Any) -> Schema:
    schema: Schema = {"type": "object", "description": description, "properties": properties, **more}
    if required:
        schema["required"] = list(required)
    return schema


def array(description: str, items: Schema, most: int, **more: Any) -> Schema:
    return {"type": "array", "description": description, "items": items, "maxItems": most, **more}


def table(description: str, values: Schema | None = None) -> Schema:
    """A map from string to string (or to `values`)."""
    value = values or {"type": "string", "maxLength": 253}
    return {"type": "object", "description": description, "maxProperties": 64, "additionalProperties": value}


OPEN = {"x-kubernetes-preserve-unknown-fields": True}

MODEL = record(
    "The model and how it is loaded.",
    {
        "source": text(
            "Where the weights are: hf://org/name[@revision], pvc://claim/path, file:///path or python://package/file.gguf.",
            pattern=r"^(hf|pvc|file|python)://.+$",
            longest=1024,
        ),
        "servedName": text("What clients put into `model`. The service's name when omitted.", longest=128),
        "maxLength": integer("Most tokens of prompt and output together. The model's own when omitted.", 2, 1 << 24),
        "quantization": choice("Precision of the weights.", ("none", "int8", "fp8", "awq"), default="none"),
        "speculation": record(
            "Speculative decoding.",
            {
                "method": choice("How drafts are made.", ("ngram", "draft")),
                "tokens": integer("Draft tokens.", 1, 32),
            },
        ),
    },
    ("source",),
)

ENGINE = record(
    "The engine that serves the model.",
    {
        "runtime": choice("Which engine.", ("pagefleet", "vllm", "sglang", "tgi", "custom"), default="pagefleet"),
        "image": text("The engine's image; Pagefleet's own of this version when omitted.", longest=512),
        "args": array("More flags for the engine, as they stand.", text("A flag.", longest=1024), 64),
        "env": array(
            "Environment variables of the engine.",
            record(
                "A variable.",
                {
                    "name": text("Its name.", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"),
                    "value": text("Its value.", longest=4096),
                },
                ("name", "value"),
            ),
            64,
        ),
        "limits": record(
            "What a request may ask for.",
            {
                "promptTokens": integer("Most prompt tokens of a request.", 1, 1 << 24),
                "outputTokens": integer("Most output tokens of a request.", 1, 1 << 24),
                "queued": integer("Most queued requests of a replica; beyond it 429.", 1, 100000),
            },
        ),
        "kvCache": record(
            "The paged KV cache.",
            {
                "pageSize": {
                    "type": "integer",
                    "description": "Tokens per page.",
                    "enum": [8, 16, 32, 64, 128, 256],
                },
                "pages": integer("Pages in all; sized from the memory when omitted.", 1, 1 << 24),
                "memoryFraction": number("Share of the memory for weights and pages.", 0.05, 1.0),
            },
        ),
    },
)

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
