"""Rollout: the canary beside the stable revision, as the guard measures them."""

from __future__ import annotations

from pagefleet_observability.dashboards.panel import Dashboard, Panel, Row, Variable

OF = 'namespace="$namespace",service="$service"'
REV = "{{revision}}"
EACH = "{{revision}} {{signal}} {{stratum}}"

STANDS = Row(
    "Where it stands",
    (
        Panel(
            "Phase",
            ((f"max by (revision, phase) (pagefleet_rollout{{{OF}}})", "{{phase}} {{revision}}"),),
            "The phase of the revision that is rolled out.",
        ),
        Panel(
            "Weight", ((f"max by (revision) (pagefleet_weight{{{OF}}})", REV),), "Percent of requests.", stacked=True
        ),
        Panel(
            "Verdict",
            ((f'max by (status, reason) (pagefleet_condition{{{OF},type="Analysed"}})', "{{reason}}"),),
            "Passed, Regressed or Inconclusive.",
        ),
    ),
)

GUARD = Row(
    "The guard",
    (
        Panel(
            "Quantile by signal and stratum",
            ((f"max by (revision, signal, stratum) (pagefleet_guard_seconds{{{OF}}})", EACH),),
            "The guard's quantile (0.95 unless set otherwise) of stable and canary; strata are ranges of new prompt tokens.",
            unit="s",
            width=12,
        ),
        Panel(
            "Evidence against the canary",
            ((f"max by (revision, signal, stratum) (pagefleet_guard_evidence{{{OF}}})", EACH),),
            "An e-value. A rollback at 99 % confidence needs 200 for each signal of the guard (400 for two), and more when "
            "early slices were deleted. You may look at it at any time.",
            width=6,
        ),
        Panel(
            "Requests judged",
            ((f"max by (revision, signal, stratum) (pagefleet_guard_samples{{{OF}}})", EACH),),
            "Per signal and stratum.",
            width=6,
        ),
    ),
)

OUTSIDE = Row(
    "As clients see it",
    (
        Panel(
            "Time to first token, p95",
            ((f"revision:pagefleet_gateway_ttft_seconds:p95_5m{{{OF}}}", REV),),
            "At the gateway, streamed answers of the last five minutes.",
            unit="s",
        ),
        Panel(
            "Failed share",
            ((f"revision:pagefleet_gateway_failed:ratio_rate5m{{{OF}}}", REV),),
            "Answered 5xx.",
            unit="percentunit",
        ),
        Panel(
            "Refused share",
            ((f"revision:pagefleet_gateway_refused:ratio_rate5m{{{OF}}}", REV),),
            "Answered 4xx.",
            unit="percentunit",
        ),
    ),
)

INSIDE = Row(
    "Inside the engines",
    (
        Panel(
            "Queue time, p95",
            ((f"revision:pagefleet_request_queue_time_seconds:p95_5m{{{OF}}}", REV),),
            "Time from arrival to the first scheduled step.",
            unit="s",
        ),
        Panel(
            "Free KV pages",
            ((f"revision:pagefleet_kv_pages_free:ratio{{{OF}}}", REV),),
            "Of the fullest replica.",
            unit="percentunit",
        ),
        Panel(
            "Prefix cache hits",
            ((f"revision:pagefleet_prefix_cache_hits:ratio_rate5m{{{OF}}}", REV),),
            "A canary begins with an empty cache.",
            unit="percentunit",
        ),
    ),
)

ROLLOUT = Dashboard(
    "rollout",
    "Pagefleet: rollout",
    "The canary beside the stable revision, as the guard measures them.",
    (Variable("namespace", "pagefleet_weight"), Variable("service", 'pagefleet_weight{namespace="$namespace"}')),
    (STANDS, GUARD, OUTSIDE, INSIDE),
)
