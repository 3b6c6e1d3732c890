"""The structure of `.spec.scaling`."""

from __future__ import annotations

from pagefleet_operator.domain.fields import duration, integer, number, percent, record

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
