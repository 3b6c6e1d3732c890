"""Recording rules: ratios and quantiles that alerts and dashboards share. By revision, so that a canary stands alone.

A service states its objectives in spec.slo, and the gateways count them: any bound, and by priority. For a service without
any, the objective is TTFT_SECONDS to the first token for 95 of 100 streamed requests. It must be a bound of the gateway's
histogram.
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
OBJECTIVE = "namespace, service, objective"
MISSED, COUNTED = (f"pagefleet_gateway_slo_{name}_total" for name in ("missed", "requests"))
ALLOWED = "pagefleet_gateway_slo_allowed_ratio"
FALLBACKS = "unreached|timeout|failed|avoided|unnamed"  # outcomes of prompts that no prefill pod has computed
OF_REVISIONS = '{revision!=""}'  # without prefill pods, which have labels of their own
PREFILL_QUEUE = "revision:pagefleet_prefill_waiting:mean"
BURN_WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d")


def slow(level: str, window: str) -> str:
    """The name of the share of streamed requests in `window` whose first token came later than the objective."""
    return f"{level}:pagefleet_gateway_ttft_slow:ratio_rate{window}"


def _slow(level: str, by: str, window: str) -> Recording:
    bucket, count = "pagefleet_gateway_ttft_seconds_bucket", "pagefleet_gateway_ttft_seconds_count"
    fast = f'sum by ({by}) (rate({bucket}{{le="{TTFT_SECONDS}"}}[{window}]))'
    return Recording(slow(level, window), f"1 - {fast} / sum by ({by}) (rate({count}[{window}]))")


def burn(window: str) -> str:
    """The name of the burn rate of spec.slo's objectives in `window`."""
    return f"service:pagefleet_slo_burn:odds_rate{window}"


def missed(window: str) -> str:
    """How many requests have missed each objective in `window`."""
    return f"sum by ({OBJECTIVE}) (increase({MISSED}[{window}]))"


def _burn(window: str) -> tuple[Recording, Recording]:
    """The share of missed requests, and its odds divided by those of the allowed share.

    For the usual small shares the ratio of odds is the ratio of the shares, the Workbook's burn rate. With a budget of 5 % a
    burn of 14.4 would be 72 % missed requests by shares, and one of 50 % could never be reached. By odds it is 43 % and 94 %.
    """
    share = f"service:pagefleet_slo_missed:ratio_rate{window}"
    allowed = f"max by ({OBJECTIVE}) ({ALLOWED})"
    ratio = f"sum by ({OBJECTIVE}) (rate({MISSED}[{window}])) / (sum by ({OBJECTIVE}) (rate({COUNTED}[{window}])) > 0)"
    odds = f"{share} / (1 - {share}) / on ({OBJECTIVE}) ({allowed} / (1 - {allowed}))"
    return Recording(share, ratio), Recording(burn(window), odds)


def _coded(codes: str) -> str:
    picked = f'rate({REQUESTS}{{code=~"{codes}",revision!=""}}[5m])'
    return f'sum by ({BY}) ({picked}) / sum by ({BY}) (rate({REQUESTS}{{revision!=""}}[5m]))'


def _quantile(metric: str) -> str:
    return f"histogram_quantile(0.95, sum by ({BY}, le) ({rate(metric, '[5m]', OF_REVISIONS, '_bucket')}))"


def _of_prefill_pods(metric: str) -> str:
    """The mean of a gauge of a revision's prefill pods, which are scraped with labels of their own."""
    series = level(metric, '{prefill_of!=""}')
    mean = f"avg by (namespace, prefill_of, prefill_revision) ({series})"
    named = f'label_replace({mean}, "service", "$1", "prefill_of", "(.+)")'
    return f'max by ({BY}) (label_replace({named}, "revision", "$1", "prefill_revision", "(.+)"))'


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

OBJECTIVE_RULES = Group("pagefleet-objectives", tuple(rule for window in BURN_WINDOWS for rule in _burn(window)))

ENGINE_RULES = Group(
    "pagefleet-engines",
    (
        Recording(
            "revision:pagefleet_kv_pages_free:ratio",
            f"min by ({BY}) ((pagefleet_kv_pages_free + pagefleet_kv_pages_cached) / pagefleet_kv_pages"
            f" or 1 - ({' or '.join(f'{name}{OF_REVISIONS}' for name in OTHERS[KV_USAGE])}))",
        ),
        Recording("revision:pagefleet_request_queue_time_seconds:p95_5m", _quantile(QUEUE_TIME)),
        Recording(
            "revision:pagefleet_queue:saturation",
            f"sum by ({BY}) ({level(WAITING, OF_REVISIONS)}) / clamp_min(sum by ({BY}) ({level(RUNNING, OF_REVISIONS)}), 1)",
        ),
        Recording(PREFILL_QUEUE, _of_prefill_pods(WAITING)),
        Recording(
            "revision:pagefleet_prefix_cache_hits:ratio_rate5m",
            f"sum by ({BY}) (rate(pagefleet_prefix_cache_hits_total[5m]))"
            f" / sum by ({BY}) (rate(pagefleet_prefix_cache_queries_total[5m]))",
        ),
    ),
)
