"""Recording rules: ratios and quantiles that alerts and dashboards share. By revision, so that a canary stands alone.

The objective for time to first token is one for all services: TTFT_SECONDS for 95 of 100 streamed requests, counted at
the gateway. It must be a bound of the gateway's histogram.
"""

from __future__ import annotations

from pagefleet_contract.engine_metrics import KV_USAGE, QUEUE_TIME, RUNNING, WAITING
from pagefleet_observability.rules.engines import OTHERS, level, rate
from pagefleet_observability.rules.rule import Group, Recording

BY = "namespace, service, revision"
SERVICE = "namespace, service"
TTFT_SECONDS, TTFT_BUDGET = "1.0", 0.05
WINDOWS = ("5m", "30m", "1h", "6h")
REQUESTS = "pagefleet_gateway_requests_total"


def slow(level: str, window: str) -> str:
    """The name of the share of streamed requests in `window` whose first token came later than the objective."""
    return f"{level}:pagefleet_gateway_ttft_slow:ratio_rate{window}"


def _slow(level: str, by: str, window: str) -> Recording:
    bucket, count = "pagefleet_gateway_ttft_seconds_bucket", "pagefleet_gateway_ttft_seconds_count"
    fast = f'sum by ({by}) (rate({bucket}{{le="{TTFT_SECONDS}"}}[{window}]))'
    return Recording(slow(level, window), f"1 - {fast} / sum by ({by}) (rate({count}[{window}]))")


def _coded(codes: str) -> str:
    picked = f'rate({REQUESTS}{{code=~"{codes}",revision!=""}}[5m])'
    return f'sum by ({BY}) ({picked}) / sum by ({BY}) (rate({REQUESTS}{{revision!=""}}[5m]))'


def _quantile(metric: str) -> str:
    return f"histogram_quantile(0.95, sum by ({BY}, le) ({rate(metric, '[5m]', suffix='_bucket')}))"


REQUEST_RULES = Group(
    "pagefleet-requests",
    (
        Recording(
            "revision:pagefleet_gateway_requests:rate5m", f'sum by ({BY}) (rate({REQUESTS}{{revision!=""}}[5m]))'
        ),
        Recording("revision:pagefleet_gateway_refused:ratio_rate5m", _coded("4..")),
        Recording("revision:pagefleet_gateway_failed:ratio_rate5m", _coded("5..")),
        Recording(
            "service:pagefleet_gateway_shed:ratio_rate5m",
            f'sum by ({SERVICE}) (rate({REQUESTS}{{code=~"429|503",revision="",service!=""}}[5m]))'
            f' / sum by ({SERVICE}) (rate({REQUESTS}{{service!=""}}[5m]))',
        ),
        *(_slow("revision", BY, window) for window in WINDOWS),
        *(_slow("service", SERVICE, window) for window in WINDOWS),
        Recording("revision:pagefleet_gateway_ttft_seconds:p95_5m", _quantile("pagefleet_gateway_ttft_seconds")),
        Recording("revision:pagefleet_gateway_e2e_seconds:p95_5m", _quantile("pagefleet_gateway_e2e_seconds")),
    ),
)

ENGINE_RULES = Group(
    "pagefleet-engines",
    (
        Recording(
            "revision:pagefleet_kv_pages_free:ratio",
            f"min by ({BY}) ((pagefleet_kv_pages_free + pagefleet_kv_pages_cached) / pagefleet_kv_pages"
            f" or 1 - ({' or '.join(OTHERS[KV_USAGE])}))",
        ),
        Recording("revision:pagefleet_request_queue_time_seconds:p95_5m", _quantile(QUEUE_TIME)),
        Recording(
            "revision:pagefleet_queue:saturation",
            f"sum by ({BY}) ({level(WAITING)}) / clamp_min(sum by ({BY}) ({level(RUNNING)}), 1)",
        ),
        Recording(
            "revision:pagefleet_prefix_cache_hits:ratio_rate5m",
            f"sum by ({BY}) (rate(pagefleet_prefix_cache_hits_total[5m]))"
            f" / sum by ({BY}) (rate(pagefleet_prefix_cache_queries_total[5m]))",
        ),
    ),
)
