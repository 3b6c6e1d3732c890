"""The structure of `.spec.rollout`."""

from __future__ import annotations

from enum import StrEnum

from pagefleet_operator.domain.spec.schema.fields import (
    array,
    choice,
    confidence,
    duration,
    integer,
    keyed,
    number,
    part,
    percent,
    record,
    share,
    table,
    text,
)
from pagefleet_operator.domain.spec.schema.guard_signals import ENGINE_ONLY, GUARD_SIGNALS, Source
from pagefleet_operator.domain.spec.schema.patterns import GATE_NAME, HISTOGRAM, STICKY_BY
from pagefleet_operator.domain.spec.schema.step_kinds import STEP

# The API server compares a whole number with bounds cast to int64; one beyond that refuses every whole number.
MAX_NUMBER = 1e15
SOURCES = tuple(Source)


class OnInconclusive(StrEnum):
    """What happens to a step that has no verdict at its deadline."""

    HOLD = "hold"
    ROLLBACK = "rollback"
    PROMOTE = "promote"


GUARD = record(
    "When a canary is rolled back. A signal that is left out keeps its default; {} means no guard.",
    {
        "latency": array(
            "Tests on requests against the concurrent stable revision. Omitted: the p95 of ttft, where clients do not stream that of whole answers. []: none.",
            record(
                "One signal.",
                {
                    "signal": choice("The quantity that is measured and judged.", tuple(GUARD_SIGNALS)),
                    "source": choice(
                        "Who measures it: the gateways, the engines' own histograms, or the operator's Prometheus. "
                        f"Omitted: Gateway; for {' and '.join(ENGINE_ONLY)} Engine.",
                        SOURCES,
                    ),
                    "histogram": text(
                        "With source Prometheus, instead of the engines' own: a histogram of seconds (milliseconds when its "
                        'name ends so), as in istio_request_duration_milliseconds{destination_workload="$service-$revision"}.',
                        pattern=HISTOGRAM,
                        longest=1024,
                    ),
                    "quantile": number("The quantile that is compared, such as 0.95.", 0.5, 0.999, default=0.95),
                    "maxIncrease": percent("The largest accepted increase over the stable revision.", default="15%"),
                    "maxSeconds": number(
                        "An absolute bound beside maxIncrease: seconds that the quantile must not exceed. Omitted: none.",
                        0.001,
                        86400,
                    ),
                    "confidence": confidence("Confidence of a conviction.", default="99%"),
                    "minRequests": integer("Fewest canary requests before it can pass.", 1, 1000000, default=200),
                },
                ("signal",),
            ),
            8,
        ),
        "errors": record(
            "Failed requests. Omitted: at most 1%. {}: not judged.",
            {
                "maxRate": share("Accepted share of failed requests. Omitted: 1%."),
                "source": choice("Who counts them, as for latency. Omitted: Gateway.", SOURCES),
            },
        ),
        "fallbacks": record(
            "Requests that traffic.fallback answered instead of the revision. Omitted: not judged.",
            {"maxRate": share("Accepted share of such requests.")},
            ("maxRate",),
        ),
        "throughput": record(
            "Output tokens per second of a request in flight, against the concurrent stable revision. Omitted: not judged.",
            {"maxDecrease": part("The largest accepted decrease.")},
            ("maxDecrease",),
        ),
        "cost": record(
            "Cost of an output token at equal load, against the concurrent stable revision. Omitted: not judged.",
            {"maxIncrease": percent("The largest accepted increase.")},
            ("maxIncrease",),
        ),
        "freePages": record(
            "A floor under the canary's free KV pages.",
            {
                "min": share("Share of pages that must be free or reclaimable."),
                "for": duration("How long fewer are accepted.", default="5m"),
            },
            ("min",),
        ),
        "promql": keyed(
            "Values from the operator's Prometheus that must lie within bounds.",
            "name",
            record(
                "A gate: exceeded it rolls back, unknown it holds.",
                {
                    "name": text("The name that verdicts show for the query.", pattern=GATE_NAME, longest=63),
                    "query": text(
                        "PromQL with one value; $namespace, $service, $stable, $canary are filled in.", longest=2048
                    ),
                    "min": number("The smallest value that is accepted.", -MAX_NUMBER, MAX_NUMBER),
                    "max": number("The largest value that is accepted.", -MAX_NUMBER, MAX_NUMBER),
                    "interval": duration("How often it is asked.", default="30s"),
                },
                ("name", "query"),
            ),
            8,
        ),
        "warmupRequests": integer("First canary requests that do not count. Omitted: 5.", 0, 100000),
        "onInconclusive": choice(
            "What a step's deadline does without a verdict; promote ends the step, although nothing was shown. Omitted: hold.",
            tuple(OnInconclusive),
        ),
        "deadline": duration("Longest wait for a step's verdict. Omitted: 2h."),
    },
)

ROLLOUT = record(
    "How a new revision takes over. Each field that is left out has its own default.",
    {
        "steps": array(
            "In this order; then the revision is promoted. Omitted: 10 % and 50 % for 5 minutes each. []: none, so that "
            "a new revision takes all traffic at once.",
            STEP,
            32,
        ),
        "guard": GUARD,
        "afterPromotion": record(
            "What follows when the last step is done.",
            {
                "watch": duration("Go on judging for so long."),
                "keepPrevious": duration(
                    "Keep the previous revision's replicas warm for so long; an alert or a proven regression rolls back to them."
                ),
            },
        ),
        "watch": record(
            "Compare the stable revision with its predecessor at like load, at any hour. Omitted: with the limits of the "
            "guard on ttft. {}: never.",
            {
                "quantile": number("The quantile of ttft that is watched. Omitted: the guard's.", 0.5, 0.999),
                "maxIncrease": percent("The largest accepted increase. Omitted: the guard's."),
                "confidence": confidence("Confidence of a conviction, in each four weeks. Omitted: the guard's."),
            },
        ),
        "alerts": record(
            "Alertmanager alerts about the canary's revision that roll it back, or pause it.",
            {
                "matchLabels": table("Labels an alert must carry (beside namespace and service)."),
                "onAlert": choice("What an alert does to a rollout.", ("rollback", "pause"), default="rollback"),
                "withoutRevision": choice(
                    "An alert without the label revision: ignore, or act on whatever canary there is. Omitted: ignore.",
                    ("ignore", "act"),
                ),
            },
            ("matchLabels",),
        ),
        "historyLimit": integer("Revisions stored, with their spec, to go back to.", 1, 50, default=10),
        "route": record(
            "The requests that are routed to the canary whatever its weight.",
            {
                "header": table(
                    "A request with all of these headers, each with its value, is routed to the canary, whatever the weight."
                ),
                "stickyBy": text(
                    "header/<name>: requests with the same value stay with one revision.",
                    pattern=STICKY_BY,
                ),
            },
        ),
    },
)
