"""The structure of `.spec.traffic`: what the gateway holds, sheds, limits and retries, and who splits traffic.

Bounds and defaults are the gateway's own (pagefleet_contract.traffic).
"""

from __future__ import annotations

from pagefleet_contract.names import GATEWAY, OBJECT_NAME
from pagefleet_contract.traffic import (
    DEFAULT_HELD_BYTES,
    DEFAULT_HELD_REQUESTS,
    DEFAULT_RETRIES,
    DEFAULT_TIMEOUT,
    MAX_HELD_BYTES,
    MAX_HELD_REQUESTS,
    MAX_RETRIES,
)
from pagefleet_operator.domain.spec.schema.fields import (
    Schema,
    array,
    choice,
    integer,
    record,
    text,
    time_limit,
)
from pagefleet_operator.domain.spec.schema.patterns import HEADER_NAME, HOST_NAME, KIND


def _header(description: str, **more: int) -> Schema:
    return text(description, pattern=HEADER_NAME, longest=128, **more)


QUEUE = record(
    "Requests that wait in the gateway while no pod can take them.",
    {
        "timeout": time_limit(
            "Longest wait, at most 5m. When omitted: 60s with scaling.idleToZero or mode external, else nothing waits."
        ),
        "maxRequests": integer(
            "Most requests that wait, in all gateway pods.", 1, MAX_HELD_REQUESTS, default=DEFAULT_HELD_REQUESTS
        ),
        "maxBytes": integer(
            "Most bytes of waiting requests, in all gateway pods.", 1024, MAX_HELD_BYTES, default=DEFAULT_HELD_BYTES
        ),
        "tenantHeader": _header(
            "Whose value is a tenant: waiting requests are let go fairly between tenants, in all gateway pods. When omitted:"
            " each API key is one."
        ),
    },
)

PRIORITY = record(
    "A class of requests.",
    {
        "name": text("The name of the class, for people and metrics.", pattern=OBJECT_NAME, longest=63),
        "header": {
            "type": "object",
            "description": "Headers and their exact values; a request with all of them is of this class.",
            "minProperties": 1,
            "maxProperties": 8,
            "additionalProperties": {"type": "string", "maxLength": 256},
        },
        "queue": record(
            "What may wait of this class, besides the bounds of traffic.queue.",
            {
                "timeout": time_limit("Longest wait, at most 5m; that of traffic.queue when omitted."),
                "maxRequests": integer(
                    "Most requests that wait, in all gateway pods; no bound of its own when omitted.",
                    1,
                    MAX_HELD_REQUESTS,
                ),
                "maxBytes": integer(
                    "Most bytes of waiting requests, in all gateway pods; no bound of its own when omitted.",
                    1024,
                    MAX_HELD_BYTES,
                ),
            },
            minProperties=1,
        ),
    },
    ("name", "header"),
)

RATE_LIMIT = record(
    "What each value of a header may ask for, in all gateway pods together. Requests without the header share one allowance.",
    {
        "header": _header("The header that names the client, such as authorization or x-tenant."),
        "requestsPerMinute": integer("Requests that are let through in a minute.", 1, 10_000_000),
        "tokensPerMinute": integer("Tokens a minute: the prompt's and the most the answer may have.", 1, 1_000_000_000),
    },
    ("header",),
)

PARENT = record(
    "A Gateway that the HTTPRoute attaches to; as in the Gateway API's ParentReference.",
    {
        "group": text("The API group of the Gateway.", pattern=OBJECT_NAME, default="gateway.networking.k8s.io"),
        "kind": text("The kind of the parent, such as Gateway.", pattern=KIND, longest=63, default="Gateway"),
        "name": text("The name of the Gateway.", pattern=OBJECT_NAME),
        "namespace": text(
            "The namespace of the Gateway; the service's own when omitted.", pattern=OBJECT_NAME, longest=63
        ),
        "sectionName": text("One of its listeners; all that allow it when omitted.", pattern=OBJECT_NAME),
        "port": integer("Listeners on this port only.", 1, 65535),
    },
    ("name",),
)

GATEWAY_API = record(
    "The HTTPRoute of provider GatewayAPI.",
    {
        "parentRefs": array("The Gateways that serve it.", PARENT, 16, minItems=1),
        "hostnames": array(
            "Host names that mean this service: their paths are /v1/..., without them /<namespace>/<name>/v1/... is the service's path.",
            text("A host name; *. in front matches every name below it.", pattern=HOST_NAME),
            16,
        ),
        "backend": choice(
            "What the route leads to. When omitted: InferencePool where the cluster serves it, else Service.",
            ("Service", "InferencePool"),
        ),
        "picker": record(
            "The endpoint picker of the InferencePool: a pagefleet-gateway Service in the service's namespace.",
            {
                "service": text("The name of the picker's Service.", pattern=OBJECT_NAME, longest=63, default=GATEWAY),
                "port": integer("The port of its ext_proc server.", 1, 65535, default=9003),
                "failureMode": choice(
                    "Without an answer of the picker: FailClose refuses, FailOpen takes any pod of any revision.",
                    ("FailClose", "FailOpen"),
                    default="FailClose",
                ),
            },
        ),
    },
    ("parentRefs",),
)

TRAFFIC = record(
    "How requests reach the pods.",
    {
        "provider": choice(
            "Who splits traffic: our gateway, or a gateway of the cluster through an HTTPRoute.",
            ("Gateway", "GatewayAPI"),
            default="Gateway",
        ),
        "gatewayAPI": GATEWAY_API,
        "timeout": time_limit("Longest time for a whole answer.", default=DEFAULT_TIMEOUT),
        "firstTokenTimeout": time_limit("Longest time to an answer's first token; no limit of its own when omitted."),
        "nextTokenTimeout": time_limit("Longest silence within an answer; no limit of its own when omitted."),
        "retries": integer("Other pods tried before the first byte.", 0, MAX_RETRIES, default=DEFAULT_RETRIES),
        "circuitBreaker": record(
            "Limits of what a pod gets at once.",
            {
                "maxRequestsPerPod": integer(
                    "Requests a pod may have in flight before others wait or go to the fallback.",
                    1,
                    100_000,
                )
            },
            ("maxRequestsPerPod",),
        ),
        "queue": QUEUE,
        "priorities": array("Classes of requests, most important first; what matches none comes last.", PRIORITY, 16),
        "peak": record(
            "What answers may have while a class of requests is saturated: some of it or of a more important class wait in the"
            " gateway for a pod, or requests wait in every pod's engine.",
            {
                "maxOutputTokens": integer(
                    "New tokens of each answer; a request that asks for fewer keeps that.", 1, 1_000_000
                )
            },
            ("maxOutputTokens",),
        ),
        "rateLimits": array("Limits of requests, each of which holds for itself.", RATE_LIMIT, 16),
        "fallback": record(
            "Another service when this one cannot answer.",
            {
                "service": text(
                    "An InferenceService of the same namespace. It must accept the requests' model.",
                    pattern=OBJECT_NAME,
                )
            },
            ("service",),
        ),
    },
)
