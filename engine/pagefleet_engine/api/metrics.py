"""The engine's Prometheus metrics; names carry vLLM's meaning under our prefix (ARCHITECTURE.md)."""

from __future__ import annotations

from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pagefleet_engine.core.requests import EngineConfig, EngineStats, TokenOutput

# 1 ms to 60 s, 12 % apart: a p95 read from them is a few percent off at most.
LATENCY = tuple(round(0.001 * 1.12**step, 6) for step in range(98))
STEP = tuple(round(0.0005 * 1.3**step, 6) for step in range(40))


class Metrics:
    """One engine's metrics in a registry of their own."""

    def __init__(self, model_name: str, config: EngineConfig) -> None:
        self.registry = CollectorRegistry()
        name, labels = {"model_name": model_name}, ["model_name"]

        def gauge(metric: str, text: str) -> Gauge:
            return Gauge(metric, text, labels, registry=self.registry).labels(**name)

        def counter(metric: str, text: str) -> Counter:
            return Counter(metric, text, labels, registry=self.registry).labels(**name)

        def histogram(metric: str, text: str, buckets: tuple[float, ...] = LATENCY) -> Histogram:
            return Histogram(metric, text, labels, registry=self.registry, buckets=buckets).labels(**name)

        self.running = gauge("pagefleet_num_requests_running", "Requests in the running batch")
        self.waiting = gauge("pagefleet_num_requests_waiting", "Requests queued")
        self.usage = gauge("pagefleet_kv_cache_usage_perc", "Share of KV pages held by requests, 0 to 1")
        self.pages = gauge("pagefleet_kv_pages", "KV pages in all")
        self.pages_free = gauge("pagefleet_kv_pages_free", "KV pages free and blank")
        self.pages_cached = gauge("pagefleet_kv_pages_cached", "KV pages free and holding a reusable prefix")
        self.prompt_tokens = counter("pagefleet_prompt_tokens", "Prompt tokens")
        self.generation_tokens = counter("pagefleet_generation_tokens", "Generated tokens")
        self.preemptions = counter("pagefleet_num_preemptions", "Requests preempted for want of pages")
        self.prefix_queries = counter("pagefleet_prefix_cache_queries", "Prompt tokens looked up in the prefix cache")
        self.prefix_hits = counter("pagefleet_prefix_cache_hits", "Prompt tokens found in the prefix cache")
        self._success = Counter(
            "pagefleet_request_success",
            "Finished requests",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        self._name = model_name
        self.ttft = histogram("pagefleet_time_to_first_token_seconds", "Arrival to first token")
        self.itl = histogram("pagefleet_inter_token_latency_seconds", "Between two tokens of a request")
        self.e2e = histogram("pagefleet_e2e_request_latency_seconds", "Arrival to last token")
        self.queue = histogram("pagefleet_request_queue_time_seconds", "Arrival to first scheduled")
        self.step = histogram("pagefleet_step_seconds", "One step of the engine", STEP)
        info = ["version", "model_name", "quantization", "batching"]
        Gauge("pagefleet_engine_info", "What runs", info, registry=self.registry).labels(
            version("pagefleet"), model_name, config.quantization, config.batching
        ).set(1)
        self._last: EngineStats | None = None

    def levels(self, stats: EngineStats) -> None:
        """Take the engine's levels, and its counters since the last time."""
        self.running.set(stats.running)
        self.waiting.set(stats.waiting)
        self.pages.set(stats.pages_total)
        self.pages_free.set(stats.pages_free)
        self.pages_cached.set(stats.pages_cached)
        self.usage.set(1 - (stats.pages_free + stats.pages_cached) / stats.pages_total)
        last = self._last
        self.preemptions.inc(stats.preemptions - (last.preemptions if last else 0))
        self.prefix_queries.inc(stats.prefix_queries - (last.prefix_queries if last else 0))
        self.prefix_hits.inc(stats.prefix_hits - (last.prefix_hits if last else 0))
        self._last = stats

    def finished(self, reason: str, seconds: float) -> None:
        """Count a request that ended `seconds` after its arrival; one given up early tells nothing of latency."""
        self._success.labels(self._name, reason).inc()
        if reason != "abort":
            self.e2e.observe(seconds)

    def first(self, output: TokenOutput, seconds: float) -> None:
        self.ttft.observe(seconds)
        self.prompt_tokens.inc(output.prompt_tokens)
        if output.queue_seconds is not None:
            self.queue.observe(max(0.0, output.queue_seconds))

    def text(self) -> bytes:
        return generate_latest(self.registry)
