"""Alerts about the system itself: the operator, the gateway and the batches server."""

from __future__ import annotations

from pagefleet_observability.rules.rule import Alert, Group, Severity

PAGE, TICKET = Severity.PAGE, Severity.TICKET

SYSTEM = Group(
    "pagefleet-system",
    (
        Alert(
            "PagefleetOperatorNotLeading",
            PAGE,
            "max by (namespace) (pagefleet_operator_leader) < 1 or absent(pagefleet_operator_leader)",
            "2m",
            "No operator is leading",
            "No replica of the operator holds the Lease, or Prometheus scrapes none. Weights and replicas stay as they are.",
        ),
        Alert(
            "PagefleetGatewayAbsent",
            PAGE,
            # An endpoint picker has the same metrics in a tenant's namespace. The gateway runs beside the operator.
            "absent(pagefleet_gateway_watch_synced)"
            " or (max by (namespace) (pagefleet_operator_leader) unless on (namespace) pagefleet_gateway_watch_synced)",
            "2m",
            "No gateway is scraped",
            "Prometheus has had no metrics of a gateway beside the operator for two minutes: none runs, or Prometheus cannot reach it.",
        ),
        Alert(
            "PagefleetOperatorLagging",
            TICKET,
            "max by (namespace, pod) (pagefleet_operator_loop_lag_seconds) > 1",
            "5m",
            "The operator {{ $labels.pod }} is {{ $value | humanizeDuration }} late",
            "Its event loop lags by more than a second: decisions and rollbacks are late.",
        ),
        Alert(
            "PagefleetOperatorErrors",
            TICKET,
            # One service whose decisions all fail is tried again every fifteen seconds, and a try may last for ten.
            "sum by (namespace, kind) (rate(pagefleet_operator_reconcile_errors_total[5m])) > 0.03",
            "10m",
            "The operator's decisions fail: {{ $labels.kind }}",
            "Nearly two decisions a minute, or more, have failed for ten minutes: those of one service at least.",
        ),
        Alert(
            "PagefleetOperatorWatchRestarts",
            TICKET,
            "sum by (namespace) (increase(pagefleet_operator_watch_restarts_total[15m])) > 5",
            "",
            "The operator's watches were restarted {{ $value | humanize }} times in 15 min",
            "The API server ends the watches, or it cannot be reached.",
        ),
        Alert(
            "PagefleetGatewayWatchRestarts",
            TICKET,
            "sum by (namespace, kind) (increase(pagefleet_gateway_watch_restarts_total[15m])) > 5",
            "",
            "The gateway's watches of {{ $labels.kind }} were restarted {{ $value | humanize }} times in 15 min",
            "The API server ends the watches, or it cannot be reached. The gateway uses the routes and pods of the last list.",
        ),
        Alert(
            "PagefleetGatewayPodsEjected",
            TICKET,
            "max by (namespace) (pagefleet_gateway_pods_ejected) > 0",
            "10m",
            "The gateway has ejected {{ $value }} pods after failed requests",
            "Engine pods that are Ready have been failing requests for ten minutes.",
        ),
        Alert(
            "PagefleetGatewayKeysInvalid",
            TICKET,
            "pagefleet_gateway_api_keys_valid == 0 and max_over_time(pagefleet_gateway_api_keys_valid[30d]) == 1",
            "5m",
            "The file of API keys cannot be used",
            "The gateway still uses the keys from before the file was changed.",
        ),
        Alert(
            "PagefleetBatchesNotReady",
            TICKET,
            # Also when it is not scraped any more: a pod that cannot start, or ends again and again, has no page.
            "max by (namespace) (max_over_time(pagefleet_batches_ready[1d])) unless on (namespace) pagefleet_batches_ready == 1",
            "10m",
            "The batches server cannot work",
            "It does not run, does not reach the gateway, or the API keys of the two do not fit. Its /readyz and its log name the reason.",
        ),
        Alert(
            "PagefleetBatchesExpired",
            TICKET,
            'sum by (namespace) (increase(pagefleet_batches_ended_total{status="expired"}[1h])) > 0',
            "",
            "{{ $value | humanize }} batches expired in the last hour",
            "Their windows ended before all lines were answered: the fleet had too little idle capacity for them.",
        ),
    ),
)
