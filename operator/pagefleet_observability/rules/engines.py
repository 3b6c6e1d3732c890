"""The names of our metrics in other engines (vLLM, SGLang, TGI), and expressions that take whichever name exists.

A pod runs one engine, so at most one name of an expression has series of that pod.

Only numbers with the same meaning are here; docs/runtimes.md lists those that an engine does not report.
"""

from __future__ import annotations

from pagefleet_contract.engine_metrics import (
    E2E,
    GENERATION_TOKENS,
    ITL,
    KV_USAGE,
    PREEMPTIONS,
    PROMPT_TOKENS,
    QUEUE_TIME,
    RUNNING,
    SUCCESS,
    TTFT,
    WAITING,
)

OTHERS = {
    RUNNING: (
        "vllm:num_requests_running", "sglang:num_running_reqs", "tgi_batch_current_size",
    ),
    WAITING: ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "tgi_queue_size"),
    KV_USAGE: ("vllm:kv_cache_usage_perc", "sglang:token_usage"),
    GENERATION_TOKENS: (
        "vllm:generation_tokens_total", "sglang:generation_tokens_total", "tgi_request_generated_tokens_sum",
    ),
    PROMPT_TOKENS: ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    PREEMPTIONS: ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
    SUCCESS: (
        "vllm:request_success_total", "sglang:num_requests_total", "tgi_request_success", "tgi_request_failure",
    ),
    TTFT: (
        "vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds",
    ),
    ITL: (
        "vllm:inter_token_latency_seconds", "sglang:inter_token_latency_seconds",
    ),
    E2E: (
        "vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds", "tgi_request_duration",
    ),
    QUEUE_TIME: (
        "vllm:request_queue_time_seconds", "sglang:queue_time_seconds", "tgi_request_queue_duration",
    ),
}  # fmt: skip


def level(metric: str, matchers: str = "") -> str:
    """A gauge, by our name for it. `matchers` as in a selector, with its braces."""
    return " or ".join(f"{name}{matchers}" for name in (metric, *OTHERS.get(metric, ())))


def rate(metric: str, window: str, matchers: str = "", suffix: str = "") -> str:
    """Of a counter, or with `suffix` of a histogram's series; `window` with its brackets."""
    return " or ".join(f"rate({name}{suffix}{matchers}{window})" for name in (metric, *OTHERS.get(metric, ())))
