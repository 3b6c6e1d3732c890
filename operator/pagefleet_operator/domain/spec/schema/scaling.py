"""The structure of `.spec.scaling`, and of `.spec.capacityPlan`, by which the replicas were planned."""

from __future__ import annotations

from pagefleet_operator.domain.spec.schema.fields import (
    Schema,
    array,
    choice,
    duration,
    integer,
    number,
    part,
    percent,
    record,
    text,
)
from pagefleet_operator.domain.spec.schema.targets import TARGET

REPLICAS = {
    "min": integer("The fewest replicas that there may be.", 0, 1000),
    "max": integer("The most replicas that there may be.", 1, 1000),
}


def _policies(verb: str) -> Schema:
    return array(
        f"Limits on {verb}; the one that allows most counts.",
        record(
            "At most so much within a period.",
            {
                "type": choice("What the value counts: pods, or a percentage of the replicas.", ("Pods", "Percent")),
                "value": integer("Replicas, or percent of the replicas at the period's beginning.", 1, 100000),
                "period": duration("At most 30m."),
            },
            ("type", "value", "period"),
        ),
        8,
    )


SCALING = record(
    "Replicas, by queue depth, free KV pages, throughput and time to first token.",
    {
        "min": integer("Fewest replicas; 0 needs idleToZero or mode external.", 0, 1000, default=1),
        "max": integer(
            "Most replicas of a revision; a canary's replicas come on top while a rollout lasts.",
            1,
            1000,
            default=1,
        ),
        "mode": choice(
            "internal: Pagefleet decides between min and max. external: min is the number of replicas, as an HPA, KEDA"
            " or a person sets it through /scale.",
            ("internal", "external"),
            default="internal",
        ),
        "target": TARGET,
        "startup": duration(
            "How long a replica takes until it is Ready, for the time until one was observed; 60s when omitted. Learned afterwards."
        ),
        "tolerance": percent("Share of replicas above the need that scaling down leaves.", default="10%"),
        "headroom": percent(
            "Replicas are kept for so much more than what usually arrives (as three quarters of the last hour's minutes have), so that a burst"
            " is met by what is there. None when omitted."
        ),
        "panic": record(
            "Reacting at once to a burst.",
            {
                "threshold": number("Needed over ready replicas that starts a panic.", 1.1, 100, default=2),
                "window": duration("How long nothing shrinks after a panic.", default="60s"),
            },
        ),
        "scaleUp": record(
            "How quickly replicas may be added.",
            {
                "stabilization": duration("The load must need more for so long; a panic does not wait."),
                "policies": _policies("growing"),
            },
        ),
        "scaleDown": record(
            "How quickly replicas may be removed.",
            {
                "stabilization": duration(
                    "The highest need of this window counts, of its last 28m where it is longer; so long nothing shrinks after an increase."
                    " Without it: the start-up time, 30s to 5m."
                ),
                "policies": _policies("shrinking"),
            },
        ),
        "warmSpares": integer(
            "Replicas beyond the serving ones that are loaded and asleep; they stand in within seconds while serving ones"
            " are missing. None when omitted.",
            0,
            100,
        ),
        "idleToZero": duration("Scale to zero after so long without a request."),
        "schedule": array(
            "Other bounds at set times. The highest min and the lowest max of the entries in force count.",
            record(
                "Bounds from each time that cron names, for a duration.",
                {
                    "cron": text("Minute, hour, day of month, month, day of week, as cron has them.", longest=120),
                    "timeZone": text("An IANA time zone such as Europe/Berlin.", longest=64, default="UTC"),
                    "duration": duration("How long the entry is in force."),
                    **REPLICAS,
                },
                ("cron", "duration"),
            ),
            32,
        ),
    },
)

CAPACITY_PLAN = record(
    "What the capacity plan assumes, as `pagefleet plan --spec` writes it. The condition CapacityAsPlanned compares it with what is "
    "measured: of the canary while a rollout runs, else of the stable revision.",
    {
        "tolerance": part(
            "How far a measured number may be from the planned one, as a part of the planned one; above 0%. 15% when omitted."
        ),
        "requestsPerSecond": number(
            "The requests per second that the replicas are planned for. More in the busiest five minutes of an hour are not as planned; "
            "fewer are.",
            0.0001,
            1e6,
        ),
        "replicas": integer("The replicas that the plan came to.", 1, 1000),
        "perRequest": record(
            "What one request takes, on average.",
            {
                "outputTokens": number("The tokens that are generated for it.", 1, 1e7),
                "kvTokens": number(
                    "The tokens in the KV cache that it holds while it runs, without sharedTokens.", 1, 1e7
                ),
                "sharedTokens": integer(
                    "The tokens in the KV cache that all requests have in common, so that a replica holds them once. 0 when omitted.",
                    1,
                    10_000_000,
                ),
            },
        ),
        "perReplica": record(
            "What one replica does and has room for.",
            {
                "concurrency": number("The requests that run in it at once, at the planned load.", 1, 1e5),
                "outputTokensPerSecond": number("The tokens that it generates for all of them together.", 0.01, 1e8),
                "peakOutputTokensPerSecond": number(
                    "The most tokens per second that it may generate, with more requests at once: outputTokensPerSecond when omitted. By it the "
                    "condition says what other numbers mean in replicas.",
                    0.01,
                    1e8,
                ),
                "kvCacheTokens": number("The tokens that its KV cache has room for.", 1, 1e12),
            },
        ),
    },
)
