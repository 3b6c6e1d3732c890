"""Service: one InferenceService, its revisions side by side."""

from __future__ import annotations

from pagefleet_observability.dashboards.panel import Dashboard, Panel, Row, Variable, counted
from pagefleet_observability.rules.recordings import FALLBACKS, PREFILL_QUEUE, TTFT_BUDGET, TTFT_SECONDS, burn, slow

OF = 'namespace="$namespace",service="$service"'
REV = "{{revision}}"
IN_WINDOW = "[$__rate_interval]"

TRAFFIC = Row(
    "Traffic",
    (
        Panel(
            "Weight", ((f"max by (revision) (pagefleet_weight{{{OF}}})", REV),), "Percent of requests.", stacked=True
        ),
        Panel(
            "Requests",
            ((f"revision:pagefleet_gateway_requests:rate5m{{{OF}}}", REV),),
            "Requests that ended, of the last five minutes.",
            unit="reqps",
            stacked=True,
        ),
        Panel(
            "Answers by code",
            ((f"sum by (code) (rate(pagefleet_gateway_requests_total{{{OF}}}{IN_WINDOW}))", "{{code}}"),),
            "0: the client went away first.",
            unit="reqps",
            stacked=True,
        ),
        Panel(
            "In flight and held",
            (
                (f"sum by (revision) (pagefleet_gateway_in_flight{{{OF}}})", f"in flight {REV}"),
                (f"sum(pagefleet_gateway_held{{{OF}}})", "held"),
            ),
            "Requests open at the gateways; held: waiting there for a pod.",
        ),
        Panel(
            "Rejected",
            ((f"service:pagefleet_gateway_shed:ratio_rate5m{{{OF}}}", "429 and 503"),),
            "Share that the gateway itself rejected with 429 or 503.",
            unit="percentunit",
        ),
        Panel(
            "Arrivals",
            ((f"max(pagefleet_arrivals_per_second{{{OF}}})", "arrivals"),),
            "Requests per second that the scaler plans for.",
            unit="reqps",
        ),
    ),
)

LATENCY = Row(
    "Latency",
    (
        Panel(
            "Time to first token, p95",
            ((f"revision:pagefleet_gateway_ttft_seconds:p95_5m{{{OF}}}", REV),),
            "At the gateway, streamed answers.",
            unit="s",
        ),
        Panel(
            "Whole answer, p95",
            ((f"revision:pagefleet_gateway_e2e_seconds:p95_5m{{{OF}}}", REV),),
            "At the gateway.",
            unit="s",
        ),
        Panel(
            "Error budget left",
            ((f"max by (objective) (pagefleet_slo_budget_left_ratio{{{OF}}})", "{{objective}}"),),
            "Of each objective of spec.slo in its window; below 0 more requests missed it than may.",
            unit="percentunit",
        ),
        Panel(
            "Burn rate of the objectives",
            (
                (f"{burn('5m')}{{{OF}}}", "{{objective}}, 5 min"),
                (f"{burn('1h')}{{{OF}}}", "{{objective}}, 1 h"),
                (f"{burn('6h')}{{{OF}}}", "{{objective}}, 6 h"),
            ),
            "Of spec.slo: 1 uses up the error budget exactly at the end of its window.",
        ),
        Panel(
            "Burn of the default first-token budget",
            (
                (f"{slow('service', '5m')}{{{OF}}} / {TTFT_BUDGET}", "5 min"),
                (f"{slow('service', '1h')}{{{OF}}} / {TTFT_BUDGET}", "1 h"),
                (f"{slow('service', '6h')}{{{OF}}} / {TTFT_BUDGET}", "6 h"),
            ),
            f"Share over {TTFT_SECONDS} s, over the 5 % that are allowed: 1 uses up the budget exactly at the end of the period.",
        ),
    ),
)

CAPACITY = Row(
    "Capacity",
    (
        Panel(
            "Replicas",
            (
                (f'max by (revision) (pagefleet_replicas{{{OF},state="ready"}})', f"ready {REV}"),
                (f'max by (revision) (pagefleet_replicas{{{OF},state="desired"}})', f"desired {REV}"),
                (f"max by (revision) (pagefleet_replicas_needed{{{OF}}})", f"needed {REV}"),
            ),
            "Needed: replicas for the present load, not rounded.",
        ),
        Panel(
            "Requests in replicas",
            (
                (f"max(pagefleet_requests_running{{{OF}}})", "running"),
                (f"max(pagefleet_requests_waiting{{{OF}}})", "waiting"),
            ),
            "As the scaler sees them.",
        ),
        Panel(
            "Free KV pages",
            (
                (f"max(pagefleet_kv_pages_free_ratio{{{OF}}})", "all replicas"),
                (f"revision:pagefleet_kv_pages_free:ratio{{{OF}}}", f"fullest of {REV}"),
            ),
            "Below 10 % for five minutes an alert fires.",
            unit="percentunit",
        ),
        Panel("Cost per hour", ((f"max(pagefleet_cost_per_hour{{{OF}}})", "cost"),), "Of ready replicas."),
        Panel(
            "Cost per 1000 tokens",
            ((f"max(pagefleet_cost_per_1k_tokens{{{OF}}})", "cost"),),
            "At what is generated now.",
        ),
        Panel(
            "Budget of the month",
            (
                (f"max(pagefleet_budget_spent{{{OF}}})", "spent"),
                (f"max(pagefleet_budget_forecast{{{OF}}})", "forecast for the month"),
                (f"max(pagefleet_budget{{{OF}}})", "budget"),
            ),
            "Of spec.cost.budget; nothing without one.",
        ),
        Panel(
            "Cost of the last day",
            ((f"sum(increase(pagefleet_cost_total{{{OF}}}[1d]))", "cost"),),
            "Cost of the ready replicas.",
            kind="stat",
        ),
    ),
)

PREFILLS = "pagefleet_gateway_prefills_total"
PREFILL = Row(
    "Prefill pods",
    (
        Panel(
            "Prefill pods",
            (
                (f'max by (revision) (pagefleet_prefill_replicas{{{OF},state="ready"}})', f"ready {REV}"),
                (f'max by (revision) (pagefleet_prefill_replicas{{{OF},state="desired"}})', f"desired {REV}"),
            ),
            "Of spec.engine.disaggregation; this row is empty without it.",
            width=6,
        ),
        Panel(
            "Long prompts by outcome",
            ((f"sum by (revision, outcome) (rate({PREFILLS}{{{OF}}}{IN_WINDOW}))", f"{{{{outcome}}}} {REV}"),),
            "remote: a prefill pod has computed it; every other one is computed by its decode pod.",
            unit="reqps",
            width=6,
            stacked=True,
        ),
        Panel(
            "Fallbacks",
            (
                (
                    f'sum by (revision) (rate({PREFILLS}{{{OF},outcome=~"{FALLBACKS}"}}{IN_WINDOW}))'
                    f" / sum by (revision) (rate({PREFILLS}{{{OF}}}{IN_WINDOW}))",
                    REV,
                ),
            ),
            "Share of long prompts that their decode pods compute because prefill pods did not. Above 10 % for ten minutes an alert fires.",
            unit="percentunit",
            width=6,
        ),
        Panel(
            "Waiting in prefill pods",
            ((f"{PREFILL_QUEUE}{{{OF}}}", REV),),
            "Prompts in the queue of a prefill pod, in the mean. Above 4 for ten minutes an alert fires.",
            width=6,
        ),
    ),
)

STATE = Row(
    "State",
    (
        Panel(
            "Conditions",
            ((f"max by (type, status, reason) (pagefleet_condition{{{OF}}})", ""),),
            "As in .status.conditions.",
            kind="table",
            width=12,
        ),
        Panel(
            "Decisions",
            ((f"sum by (kind) ({counted(f'pagefleet_operator_decisions_total{{{OF}}}', '5m')})", "{{kind}}"),),
            "In five minutes.",
            width=12,
            stacked=True,
        ),
    ),
)

SERVICE = Dashboard(
    "service",
    "Pagefleet: service",
    "One InferenceService, its revisions side by side.",
    (Variable("namespace", "pagefleet_weight"), Variable("service", 'pagefleet_weight{namespace="$namespace"}')),
    (TRAFFIC, LATENCY, CAPACITY, PREFILL, STATE),
)
