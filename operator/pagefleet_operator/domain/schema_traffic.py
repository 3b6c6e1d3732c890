"""The structure of `.spec.traffic`."""

from __future__ import annotations

from pagefleet_operator.domain.fields import OPEN, array, choice, duration, integer, record, text

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
