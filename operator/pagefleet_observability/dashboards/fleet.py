"""Fleet: every service at a glance, and the health of operator and gateway."""

from __future__ import annotations

from pagefleet_observability.dashboards.accelerators import NEURON
from pagefleet_observability.dashboards.panel import Dashboard, Panel, Row, Variable, counted
from pagefleet_observability.rules.recordings import SERVICE

IN = 'namespace=~"$namespace"'
EACH = "{{namespace}}/{{service}}"

SUMMARY = Row(
    "Now",
    (
        Panel(
            "Services",
            ((f"count(count by ({SERVICE}) (pagefleet_weight{{{IN}}}))", "services"),),
            "Services that have a revision.",
            kind="stat",
            width=4,
        ),
        Panel(
            "Not ready",
            ((f'count(pagefleet_condition{{{IN},type="Ready",status!="True"}}) or vector(0)', "services"),),
            "Services whose condition Ready is not True.",
            kind="stat",
            width=4,
        ),
        Panel(
            "Rollouts",
            ((f'count(pagefleet_rollout{{{IN},phase!="Watching"}}) or vector(0)', "rollouts"),),
            "Rollouts under way, without promoted revisions that are still watched.",
            kind="stat",
            width=4,
        ),
        Panel(
            "Rolled back",
            ((f'count(pagefleet_condition{{{IN},type="RolledBack",status="True"}}) or vector(0)', "services"),),
            "Services whose spec has a rejected revision.",
            kind="stat",
            width=4,
        ),
        Panel(
            "Ready replicas",
            ((f'sum(pagefleet_replicas{{{IN},state="ready"}})', "replicas"),),
            "Of all revisions.",
            kind="stat",
            width=4,
        ),
        Panel(
            "Cost per hour",
            ((f"sum(pagefleet_cost_per_hour{{{IN}}})", "cost"),),
            "Cost of the ready replicas, in the currency of spec.cost.",
            kind="stat",
            width=4,
        ),
    ),
    height=4,
)

SERVICES = Row(
    "Services",
    (
        Panel(
            "Requests",
            ((f"sum by ({SERVICE}) (revision:pagefleet_gateway_requests:rate5m{{{IN}}})", EACH),),
            "Requests that ended, of the last five minutes.",
            unit="reqps",
        ),
        Panel(
            "Failed share",
            ((f"max by ({SERVICE}) (revision:pagefleet_gateway_failed:ratio_rate5m{{{IN}}})", EACH),),
            "Share answered with 5xx, of the worst revision.",
            unit="percentunit",
        ),
        Panel(
            "Time to first token, p95",
            ((f"max by ({SERVICE}) (revision:pagefleet_gateway_ttft_seconds:p95_5m{{{IN}}})", EACH),),
            "At the gateway, streamed answers; the worst revision.",
            unit="s",
        ),
        Panel(
            "Free KV pages",
            ((f"min by ({SERVICE}) (pagefleet_kv_pages_free_ratio{{{IN}}})", EACH),),
            "Share of all replicas' KV pages that are blank or reusable.",
            unit="percentunit",
        ),
        Panel(
            "Waiting requests",
            ((f"max by ({SERVICE}) (pagefleet_requests_waiting{{{IN}}})", EACH),),
            "Queued in engines and held in gateways.",
        ),
        Panel(
            "Replicas",
            ((f'sum by ({SERVICE}) (pagefleet_replicas{{{IN},state="ready"}})', EACH),),
            "Ready replicas of all revisions.",
            stacked=True,
        ),
        Panel(
            "Rejected",
            ((f"service:pagefleet_gateway_shed:ratio_rate5m{{{IN}}}", EACH),),
            "Share that the gateway itself answered with 429 or 503.",
            unit="percentunit",
        ),
        Panel(
            "Tokens",
            ((f"max by ({SERVICE}) (pagefleet_tokens_per_second{{{IN}}})", EACH),),
            "Tokens generated per second.",
            stacked=True,
        ),
        Panel(
            "Decisions",
            ((f"sum by (kind) ({counted(f'pagefleet_operator_decisions_total{{{IN}}}', '5m')})", "{{kind}}"),),
            "Decisions of the operator in five minutes.",
            stacked=True,
        ),
    ),
)

SYSTEM = Row(
    "Operator and gateway",
    (
        Panel(
            "Leader",
            (("max by (namespace, pod) (pagefleet_operator_leader)", "{{pod}}"),),
            "1 for the replica that decides.",
        ),
        Panel(
            "Loop lag and time of a decision",
            (
                ("max by (pod) (pagefleet_operator_loop_lag_seconds)", "lag {{pod}}"),
                (
                    "histogram_quantile(0.95, sum by (le) (rate(pagefleet_operator_reconcile_seconds_bucket[5m])))",
                    "decision, p95",
                ),
            ),
            "How late the operator is.",
            unit="s",
        ),
        Panel(
            "Services due",
            (("max by (pod) (pagefleet_operator_queue_depth)", "{{pod}}"),),
            "Services that wait for a decision.",
        ),
        Panel(
            "Errors and watch restarts",
            (
                ("sum by (kind) (rate(pagefleet_operator_reconcile_errors_total[5m]))", "error {{kind}}"),
                ("sum(rate(pagefleet_operator_watch_restarts_total[5m]))", "operator's watches"),
                ("sum by (kind) (rate(pagefleet_gateway_watch_restarts_total[5m]))", "gateway's {{kind}}"),
            ),
            "Per second.",
        ),
        Panel(
            "Gateway: in flight and held",
            (
                ("sum(pagefleet_gateway_in_flight)", "in flight"),
                ("sum(pagefleet_gateway_held)", "held"),
            ),
            "Requests that the gateways have open.",
        ),
        Panel(
            "Gateway: ejected pods, received lists",
            (
                ("max by (pod) (pagefleet_gateway_pods_ejected)", "ejected {{pod}}"),
                ("min by (kind) (pagefleet_gateway_watch_synced)", "synced {{kind}}"),
            ),
            "Pods ejected after failures; 1 for each kind of object that was listed.",
        ),
    ),
)

FLEET = Dashboard(
    "fleet",
    "Pagefleet: fleet",
    "Every service at a glance, and the health of operator and gateway.",
    (Variable("namespace", "pagefleet_weight", several=True),),
    (SUMMARY, SERVICES, NEURON, SYSTEM),
)
