"""Engine: the replicas of one service: pages, batches, steps and caches. Whatever engine they run, where it tells the number
(engines.py)."""

from __future__ import annotations

from pagefleet_contract.engine_metrics import (
    E2E,
    GENERATION_TOKENS,
    ITL,
    KV_PAGES,
    KV_PAGES_CACHED,
    KV_PAGES_FREE,
    KV_USAGE,
    PREEMPTIONS,
    PREFIX_CACHE_HITS,
    PROMPT_TOKENS,
    QUEUE_TIME,
    RUNNING,
    SLEEPING,
    SUCCESS,
    SUCCESS_REASON,
    TTFT,
    WAITING,
    WAITING_TOKENS,
)
from pagefleet_observability.dashboards.accelerators import GPUS
from pagefleet_observability.dashboards.panel import Dashboard, Panel, Row, Variable
from pagefleet_observability.rules.engines import level, rate

OF = 'namespace="$namespace",service="$service",revision=~"$revision"'
POD = "{{pod}}"
WINDOW = "[$__rate_interval]"


def _level(metric: str, aggregation: str = "sum") -> str:
    return f"{aggregation} by (pod) ({level(metric, f'{{{OF}}}')})"


def _rate(metric: str, by: str = "pod", suffix: str = "") -> str:
    return f"sum by ({by}) ({rate(metric, WINDOW, f'{{{OF}}}', suffix)})"


def _share(part: str, whole: str) -> str:
    return f"{_rate(part)} / {_rate(whole)}"


def _quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"histogram_quantile({share}, {_rate(metric, 'le', '_bucket')})", f"p{round(share * 100)}")
        for share in (0.5, 0.95, 0.99)
    )


PAGES = Row(
    "KV pages",
    (
        Panel(
            "Pages held by requests",
            ((_level(KV_USAGE, "max"), POD),),
            "Share of all pages.",
            unit="percentunit",
        ),
        Panel(
            "Pages by state",
            (
                (f"sum({KV_PAGES_FREE}{{{OF}}})", "blank"),
                (f"sum({KV_PAGES_CACHED}{{{OF}}})", "hold a reusable prefix"),
                (
                    f"sum({KV_PAGES}{{{OF}}} - {KV_PAGES_FREE}{{{OF}}} - {KV_PAGES_CACHED}{{{OF}}})",
                    "held or pinned",
                ),
            ),
            "Of all replicas.",
            stacked=True,
        ),
        Panel(
            "Slots without a token",
            ((f"max by (pod) (pagefleet_kv_slot_waste_perc{{{OF}}})", POD),),
            "Share of the occupied slots that are empty: the rest of each sequence's last page.",
            unit="percentunit",
        ),
        Panel(
            "Preemptions",
            ((_rate(PREEMPTIONS), POD),),
            "Preempted sequences, whose pages were taken away, per second.",
        ),
        Panel(
            "Prefix cache hits",
            ((_share(PREFIX_CACHE_HITS, "pagefleet_prefix_cache_queries_total"), POD),),
            "Share of prompt tokens found in the prefix cache.",
            unit="percentunit",
        ),
        Panel(
            "Speculation: accepted draft tokens",
            ((_share("pagefleet_spec_decode_num_accepted_tokens_total", "pagefleet_spec_decode_num_draft_tokens_total"), POD),),
            "Share of draft tokens that were accepted.",
            unit="percentunit",
        ),
    ),
)  # fmt: skip

BATCH = Row(
    "Batches and steps",
    (
        Panel(
            "Running and waiting",
            (
                (_level(RUNNING), "running {{pod}}"),
                (_level(WAITING), "waiting {{pod}}"),
            ),
            "Sequences.",
        ),
        Panel(
            "Waiting tokens",
            ((f"sum by (pod) ({WAITING_TOKENS}{{{OF}}})", POD),),
            "Of queued prompts.",
        ),
        Panel(
            "Batch size",
            (
                (
                    f"{_rate('pagefleet_batch_size_sum')} / {_rate('pagefleet_batch_size_count')}",
                    POD,
                ),
            ),
            "Mean number of sequences at the end of a step.",
        ),
        Panel(
            "Step time by phase, p95",
            ((f"histogram_quantile(0.95, {_rate('pagefleet_step_seconds_bucket', 'phase, le')})", "{{phase}}"),),
            "prefill, decode, or mixed.",
            unit="s",
        ),
        Panel(
            "Tokens",
            (
                (_rate(GENERATION_TOKENS), "generated {{pod}}"),
                (_rate(PROMPT_TOKENS), "prompts {{pod}}"),
            ),
            "Per second.",
        ),
        Panel(
            "Finished requests",
            ((_rate(SUCCESS, SUCCESS_REASON), "{{finished_reason}}"),),
            "Per second, by reason; SGLang and TGI report none.",
            unit="reqps",
            stacked=True,
        ),
    ),
)

LATENCY = Row(
    "Latency in the engine",
    (
        Panel("Time to first token", _quantiles(TTFT), "From arrival.", unit="s"),
        Panel("Between tokens", _quantiles(ITL), "Of one answer.", unit="s"),
        Panel("Queue time", _quantiles(QUEUE_TIME), "Arrival to scheduled.", unit="s"),
        Panel("Whole answer", _quantiles(E2E), "Arrival to last token.", unit="s"),
        Panel("Prompt tokens", _quantiles("pagefleet_request_prompt_tokens"), "Of a request."),
        Panel("Generated tokens", _quantiles("pagefleet_request_generation_tokens"), "Of a request."),
        Panel(
            "First tokens, by time",
            ((_rate(TTFT, "le", "_bucket"), "{{le}}"),),
            "Every request of the engines.",
            unit="s",
            kind="heatmap",
            width=16,
        ),
        Panel(
            "Cancellations",
            ((_rate("pagefleet_request_cancellations_total"), POD),),
            "Requests whose client disconnected, per second.",
            unit="reqps",
        ),
    ),
)

WHAT = Row(
    "What runs",
    (
        Panel(
            "Engines",
            ((f"max by (pod, version, model_name, quantization, batching) (pagefleet_engine_info{{{OF}}})", ""),),
            "The engine's own description.",
            kind="table",
            width=16,
        ),
        Panel("Asleep", ((f"max by (pod) ({SLEEPING}{{{OF}}})", POD),), "1 while an engine sleeps."),
    ),
)

ENGINE = Dashboard(
    "engine",
    "Pagefleet: engine",
    "The replicas of one service: pages, batches, steps and caches.",
    (
        Variable("namespace", "pagefleet_replicas"),
        Variable("service", 'pagefleet_replicas{namespace="$namespace"}'),
        Variable("revision", 'pagefleet_replicas{namespace="$namespace",service="$service"}', several=True),
    ),
    (PAGES, BATCH, LATENCY, GPUS, WHAT),
)
