"""The engine's Prometheus metrics; names carry vLLM's meaning under our prefix (docs/reference/contract/engine.md)."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from pagefleet_contract import engine_metrics
from pagefleet_engine.api.observability.buckets import (
    BATCH,
    LATENCY,
    OTEL_DURATION,
    OTEL_TPOT,
    OTEL_TTFT,
    STEP,
    TOKENS,
    Histogram,
)
from pagefleet_engine.core.messages import EngineStep
from pagefleet_engine.core.requests import EngineConfig, EngineRequest, EngineStats, Finish, TokenOutput

PROVIDER, OPERATION = "pagefleet", "gen_ai_operation_name"  # of OpenTelemetry's conventions
UNFINISHED = (Finish.ABORT, Finish.DEADLINE, Finish.ERROR)  # the latency of these does not measure the engine


class Metrics:
    """One engine's metrics, all but the histograms in a registry of their own."""

    def __init__(self, model_name: str, config: EngineConfig) -> None:
        self.registry = CollectorRegistry()
        self._name, self._config = model_name, config
        self._histograms: list[Histogram] = []
        name, labels = {"model_name": model_name}, ["model_name"]

        def gauge(metric: str, text: str) -> Gauge:
            return Gauge(metric, text, labels, registry=self.registry).labels(**name)

        def counter(metric: str, text: str) -> Counter:
            return Counter(metric, text, labels, registry=self.registry).labels(**name)

        def histogram(
            metric: str, text: str, bounds: tuple[float, ...] = LATENCY, label: str | None = None
        ) -> Histogram:
            self._histograms.append(Histogram(metric, text, name, bounds, label))
            return self._histograms[-1]

        self.running = gauge(engine_metrics.RUNNING, "Sequences in the running batch")
        self.waiting = gauge(engine_metrics.WAITING, "Sequences queued")
        self.waiting_tokens = gauge(engine_metrics.WAITING_TOKENS, "Tokens of queued sequences")
        self.slots = gauge(engine_metrics.MAX_SEQUENCES, "Sequences that the running batch can have")
        self.slots.set(config.max_num_seqs)
        self.usage = gauge(engine_metrics.KV_USAGE, "Share of KV pages held by requests or pins, 0 to 1")
        self.pages = gauge(engine_metrics.KV_PAGES, "KV pages in all")
        gauge(engine_metrics.KV_PAGE_TOKENS, "Tokens of a KV page").set(config.page_size)
        self.pages_free = gauge(engine_metrics.KV_PAGES_FREE, "KV pages free and blank")
        self.pages_cached = gauge(engine_metrics.KV_PAGES_CACHED, "KV pages free and holding a reusable prefix")
        self.pages_pinned = gauge("pagefleet_kv_pages_pinned", "KV pages that pins keep, held by requests or not")
        self.pages_pinnable = gauge("pagefleet_kv_pages_pinnable", "KV pages that may be pinned")
        self.pins = gauge("pagefleet_prefix_cache_pins", "Pinned prompts")
        self.waste = gauge("pagefleet_kv_slot_waste_perc", "Share of held KV slots without a token, 0 to 1")
        self.acceptance = gauge(
            "pagefleet_spec_decode_acceptance_rate", "Share of draft tokens that were accepted, 0 to 1"
        )
        self.asleep = gauge(engine_metrics.SLEEPING, "1 while the engine sleeps")
        self.prompt_tokens = counter(engine_metrics.PROMPT_TOKENS, "Prompt tokens")
        self.generation_tokens = counter(engine_metrics.GENERATION_TOKENS, "Generated tokens")
        self.cancellations = counter(
            "pagefleet_request_cancellations", "Requests whose client went away or read nothing"
        )
        # From the engine's own counters, by the name of the field.
        self._counters = {
            "preemptions": counter(engine_metrics.PREEMPTIONS, "Requests preempted because KV pages were missing"),
            "prefix_queries": counter("pagefleet_prefix_cache_queries", "Prompt tokens looked up in the prefix cache"),
            "prefix_hits": counter(engine_metrics.PREFIX_CACHE_HITS, "Prompt tokens found in the prefix cache"),
            "kv_event_batches": counter("pagefleet_kv_event_batches", "Batches of KV events, dropped ones included"),
            "kv_event_batches_dropped": counter(
                "pagefleet_kv_event_batches_dropped", "Batches of KV events that found the queue full"
            ),
            "draft_tokens": counter("pagefleet_spec_decode_num_draft_tokens", "Draft tokens of speculation"),
            "accepted_tokens": counter("pagefleet_spec_decode_num_accepted_tokens", "Draft tokens that were accepted"),
        }
        reasons = [*labels, engine_metrics.SUCCESS_REASON]
        self._success = Counter(engine_metrics.SUCCESS, "Finished requests", reasons, registry=self.registry)
        self.ttft = histogram(engine_metrics.TTFT, "Arrival to first token")
        self.itl = histogram(engine_metrics.ITL, "Between two tokens of an answer")
        self.e2e = histogram(engine_metrics.E2E, "Arrival to last token")
        self.queue = histogram(engine_metrics.QUEUE_TIME, "Arrival to first scheduled")
        self._step = histogram(engine_metrics.STEP_SECONDS, "One step of the engine", STEP, "phase")
        self._batch = histogram("pagefleet_batch_size", "Sequences running at the end of a step", BATCH)
        self._prompts = histogram("pagefleet_request_prompt_tokens", "Prompt tokens of a request", TOKENS)
        self._generated = histogram("pagefleet_request_generation_tokens", "Generated tokens of a request", TOKENS)
        conventional = {"gen_ai_provider_name": PROVIDER, "gen_ai_request_model": model_name}

        def server(metric: str, text: str, bounds: tuple[float, ...]) -> Histogram:
            """A metric of OpenTelemetry's conventions for model servers, with its name as Prometheus writes it."""
            made = Histogram(f"gen_ai_server_{metric}_seconds", text, conventional, bounds, OPERATION)
            self._histograms.append(made)
            return made

        self._otel_ttft = server("time_to_first_token", "Arrival to first token, of whole answers", OTEL_TTFT)
        self._otel_tpot = server("time_per_output_token", "Per token after the first, of whole answers", OTEL_TPOT)
        self._otel_duration = server("request_duration", "Arrival to last token, of whole answers", OTEL_DURATION)
        adapters = [engine_metrics.RUNNING_ADAPTERS, "waiting_lora_adapters", "max_lora"]
        text = "Adapters of running and waiting requests, and how many can be loaded; seconds since 1970"
        self._adapters = Gauge(engine_metrics.LORA_INFO, text, adapters, registry=self.registry)
        self._info: Gauge | None = None
        self.describe({})
        self._last: EngineStats | None = None

    def describe(self, description: Mapping[str, str]) -> None:
        """Set the labels of the info metric; the engine's `description` arrives when it is ready."""
        labels = {re.sub(r"[^a-z0-9_]", "_", name.lower()): value for name, value in description.items()}
        labels |= {"version": version("pagefleet"), "model_name": self._name}
        labels |= {"quantization": self._config.quantization, "batching": self._config.batching}
        if self._info is not None:
            self.registry.unregister(self._info)
        self._info = Gauge("pagefleet_engine_info", "What runs", sorted(labels), registry=self.registry)
        self._info.labels(**labels).set(1)

    def load(self, stats: EngineStats) -> None:
        """Record the engine's load, and its counters since the last call. The counters begin again when the engine wakes."""
        self.running.set(stats.running)
        self.waiting.set(stats.waiting)
        self.waiting_tokens.set(stats.waiting_tokens)
        self.pages.set(stats.pages_total)
        self.pages_free.set(stats.pages_free)
        self.pages_cached.set(stats.pages_cached)
        self.pages_pinned.set(stats.pages_pinned)
        self.pages_pinnable.set(stats.pages_pinnable)
        self.pins.set(stats.pins)
        self.usage.set(1 - (stats.pages_free + stats.pages_cached) / max(1, stats.pages_total))
        self.waste.set(1 - stats.slots_used / stats.slots_held if stats.slots_held else 0)
        self.acceptance.set(stats.accepted_tokens / stats.draft_tokens if stats.draft_tokens else 0)
        for name, counter in self._counters.items():
            now, before = getattr(stats, name), getattr(self._last, name) if self._last else 0
            counter.inc(now - before if now >= before else now)
        self._last = stats

    def stepped(self, step: EngineStep) -> None:
        """Count a step that computed tokens; other steps only report the load."""
        if step.prefill_tokens or step.decode_tokens:
            mixed = step.prefill_tokens and step.decode_tokens
            phase = "mixed" if mixed else "prefill" if step.prefill_tokens else "decode"
            self._step.observe(step.seconds, label=phase)
            self._batch.observe(step.stats.running)

    def meter(self, request: EngineRequest, operation: str) -> Meter:
        """A meter of one request; `operation` as in OpenTelemetry's gen_ai.operation.name, such as `chat`."""
        return Meter(self, request, operation)

    def finished(self, reason: str, seconds: float, generated: int) -> None:
        """Count a request that ended `seconds` after its arrival."""
        self._success.labels(self._name, reason).inc()
        if reason not in UNFINISHED:
            self.e2e.observe(seconds)
            self._generated.observe(generated)

    def whole(self, operation: str, first: float | None, seconds: float, tokens: float) -> None:
        """Count a request whose answer is whole: its first token and its end in seconds after its arrival, and the tokens of
        an answer. `first` is None for a request without tokens, an embedding."""
        self._otel_duration.observe(seconds, label=operation)
        if first is not None:
            self._otel_ttft.observe(first, label=operation)
            if tokens > 1:
                self._otel_tpot.observe((seconds - first) / (tokens - 1), label=operation)

    def first(self, output: TokenOutput, seconds: float) -> None:
        self.ttft.observe(seconds)
        self.prompt(output)

    def prompt(self, output: TokenOutput) -> None:
        """Count a prompt, from its first output."""
        self.prompt_tokens.inc(output.prompt_tokens)
        self._prompts.observe(output.prompt_tokens)
        if output.queue_seconds is not None:
            self.queue.observe(max(0.0, output.queue_seconds))

    def text(self) -> bytes:
        """Return the page of /metrics. It has only the present set of adapters; vLLM keeps a series for each past set."""
        if (stats := self._last) is not None:
            self._adapters.clear()
            names = ",".join(stats.running_adapters), ",".join(stats.waiting_adapters)
            self._adapters.labels(*names, self._config.max_adapters).set_to_current_time()
        return generate_latest(self.registry) + "".join(one.text() for one in self._histograms).encode()


class Meter:
    """Measures one request from its outputs."""

    def __init__(self, metrics: Metrics, request: EngineRequest, operation: str) -> None:
        self._metrics, self._arrival, self._operation = metrics, request.arrival, operation
        self._first: float | None = None  # seconds from the arrival to the first token
        self._last: dict[int, float] = {}  # of each answer: when its last token came
        self._tokens = 0

    def take(self, output: TokenOutput) -> None:
        count = len(output.token_ids)
        if output.embedding is not None:
            self._metrics.prompt(output)
        if not count:
            return
        now = time.monotonic()
        if not self._last:
            self._first = now - self._arrival
            self._metrics.first(output, self._first)
        elif output.index in self._last:
            self._metrics.itl.observe((now - self._last[output.index]) / count, count)
        self._last[output.index] = now
        self._tokens += count
        self._metrics.generation_tokens.inc(count)

    def end(self, reason: str) -> None:
        seconds = time.monotonic() - self._arrival
        self._metrics.finished(reason, seconds, self._tokens)
        if reason not in UNFINISHED:
            self._metrics.whole(self._operation, self._first, seconds, self._tokens / max(1, len(self._last)))
