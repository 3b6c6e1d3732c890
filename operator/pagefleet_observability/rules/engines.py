"""What other engines (vLLM, SGLang, TGI) call the numbers that ours tells, and expressions that take whichever is there: a
pod runs one engine, so at most one of an expression's names has series of it.

Only numbers with the same meaning are here; docs/runtimes.md says which an engine does not tell.
"""

from __future__ import annotations

KV_USAGE = "pagefleet_kv_cache_usage_perc"
OTHERS = {
    "pagefleet_num_requests_running": (
        "vllm:num_requests_running", "sglang:num_running_reqs", "tgi_batch_current_size",
    ),
    "pagefleet_num_requests_waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "tgi_queue_size"),
    KV_USAGE: ("vllm:kv_cache_usage_perc", "sglang:token_usage"),
    "pagefleet_generation_tokens_total": (
        "vllm:generation_tokens_total", "sglang:generation_tokens_total", "tgi_request_generated_tokens_sum",
    ),
    "pagefleet_prompt_tokens_total": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "pagefleet_num_preemptions_total": ("vllm:num_preemptions_total",),
    "pagefleet_request_success_total": (
        "vllm:request_success_total", "sglang:num_requests_total", "tgi_request_success", "tgi_request_failure",
    ),
    "pagefleet_time_to_first_token_seconds": (
        "vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds",
    ),
    "pagefleet_inter_token_latency_seconds": (
        "vllm:inter_token_latency_seconds", "sglang:inter_token_latency_seconds",
    ),
    "pagefleet_e2e_request_latency_seconds": (
        "vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds", "tgi_request_duration",
    ),
    "pagefleet_request_queue_time_seconds": (
        "vllm:request_queue_time_seconds", "sglang:queue_time_seconds", "tgi_request_queue_duration",
    ),
}  # fmt: skip


def level(metric: str, matchers: str = "") -> str:
    """A gauge, by our name for it. `matchers` as in a selector, with its braces."""
    return " or ".join(f"{name}{matchers}" for name in (metric, *OTHERS.get(metric, ())))


def rate(metric: str, window: str, matchers: str = "", suffix: str = "") -> str:
    """Of a counter, or with `suffix` of a histogram's series; `window` with its brackets."""
    return " or ".join(f"rate({name}{suffix}{matchers}{window})" for name in (metric, *OTHERS.get(metric, ())))
