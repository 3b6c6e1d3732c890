"""Metrics tell the truth: a p95 read from the buckets is within 2 %, counters survive an engine that woke anew."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from prometheus_client.parser import text_string_to_metric_families

from pagefleet_engine.api.observability.buckets import LATENCY, Histogram
from pagefleet_engine.api.observability.metrics import Metrics
from pagefleet_engine.core.messages import EngineStep
from pagefleet_engine.core.requests import EngineConfig, EngineRequest, EngineStats, SamplingParams, TokenOutput

STATS = EngineStats(
    running=2, waiting=1, pages_total=10, pages_free=4, pages_cached=1, preemptions=3, prefix_queries=20, prefix_hits=8,
    steps=5, waiting_tokens=7, slots_held=80, slots_used=60, draft_tokens=10, accepted_tokens=4,
)  # fmt: skip


def quantile(histogram: Histogram, q: float) -> float:
    """Compute PromQL's histogram_quantile: linear within a bucket. Few samples are uncertain themselves."""
    buckets = [
        (float(sample.labels["le"]), sample.value)
        for family in text_string_to_metric_families(histogram.text())
        for sample in family.samples
        if sample.name.endswith("_bucket")
    ]
    rank = q * buckets[-1][1]
    lower, below = 0.0, 0.0
    for upper, count in buckets:
        if count >= rank:
            return lower + (upper - lower) * (rank - below) / (count - below)
        lower, below = upper, count
    raise AssertionError("no bucket holds the rank")


@pytest.mark.parametrize("median", [0.002, 0.03, 0.4, 6.0])
@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0])
def test_a_p95_from_the_buckets_is_within_2_percent(median: float, sigma: float) -> None:
    rng = random.Random(int(median * 1000 + sigma * 10))
    for count in (5_000, 50_000):
        histogram = Histogram("x_seconds", "x", {"model_name": "m"}, LATENCY)
        samples = sorted(min(60.0, max(0.001, rng.lognormvariate(0, sigma) * median)) for _ in range(count))
        for sample in samples:
            histogram.observe(sample)
        exact = samples[int(0.95 * count) - 1]
        if exact < 60:
            assert quantile(histogram, 0.95) == pytest.approx(exact, rel=0.02)


def test_neighbouring_buckets_bound_the_error_of_any_distribution() -> None:
    assert LATENCY[0] == 0.001 and LATENCY[-1] > 60
    assert all(later / earlier < 1.0501 for earlier, later in pairwise(LATENCY))
    # The middle of a bucket is at most this far from anything in it.
    assert 1.05**0.5 - 1 < 0.025


def sample(metrics: Metrics, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(metrics.text().decode()):
        for one in family.samples:
            if one.name == name and one.labels == {"model_name": "m", **labels}:
                return float(one.value)
    raise AssertionError(f"{name} is not there")


def test_levels_and_counters_follow_the_engine_also_when_it_begins_anew() -> None:
    metrics = Metrics("m", EngineConfig("file:///m"))
    metrics.load(STATS)
    metrics.load(replace(STATS, preemptions=5))
    assert sample(metrics, "pagefleet_num_preemptions_total") == 5
    metrics.load(replace(STATS, preemptions=1, pages_total=0, pages_free=0, pages_cached=0, slots_held=0))
    assert sample(metrics, "pagefleet_num_preemptions_total") == 6
    assert sample(metrics, "pagefleet_kv_slot_waste_perc") == 0
    metrics.load(STATS)
    assert sample(metrics, "pagefleet_kv_cache_usage_perc") == pytest.approx(0.5)
    assert sample(metrics, "pagefleet_kv_slot_waste_perc") == pytest.approx(0.25)
    assert sample(metrics, "pagefleet_spec_decode_acceptance_rate") == pytest.approx(0.4)
    assert sample(metrics, "pagefleet_num_tokens_waiting") == 7


@pytest.mark.parametrize(("tokens", "phase"), [((5, 0), "prefill"), ((0, 3), "decode"), ((5, 3), "mixed")])
def test_steps_are_told_by_phase(tokens: tuple[int, int], phase: str) -> None:
    metrics = Metrics("m", EngineConfig("file:///m"))
    metrics.stepped(EngineStep([], STATS, 0.01, *tokens))
    metrics.stepped(EngineStep([], STATS, 0.01))
    assert sample(metrics, "pagefleet_step_seconds_count", phase=phase) == 1
    assert sample(metrics, "pagefleet_batch_size_count") == 1


def test_the_engines_description_labels_the_info() -> None:
    metrics = Metrics("m", EngineConfig("file:///m"))
    metrics.describe({"Kernels-Used": "native", "quantization": "theirs"})
    text = metrics.text().decode()
    assert text.count("\npagefleet_engine_info{") == 1
    assert 'kernels_used="native"' in text and 'quantization="none"' in text


def test_a_request_is_measured_by_its_answers() -> None:
    metrics = Metrics("m", EngineConfig("file:///m"))
    meter = metrics.meter(EngineRequest("r", (1, 2), SamplingParams(4), arrival=0.0, n=2), "chat")
    for index, tokens in ((0, (1,)), (1, (1,)), (0, (1, 2, 3))):
        meter.take(TokenOutput("r", tokens, None, 2, 0, 0.1, index=index))
    meter.end("length")
    assert sample(metrics, "pagefleet_time_to_first_token_seconds_count") == 1
    assert sample(metrics, "pagefleet_inter_token_latency_seconds_count") == 3
    assert sample(metrics, "pagefleet_generation_tokens_total") == 5
    assert sample(metrics, "pagefleet_request_generation_tokens_sum") == 5
    assert sample(metrics, "pagefleet_request_success_total", finished_reason="length") == 1
    metrics.meter(EngineRequest("s", (1,), SamplingParams(4), arrival=0.0), "chat").end("abort")
    assert sample(metrics, "pagefleet_e2e_request_latency_seconds_count") == 1


def test_opentelemetrys_names_and_labels_stand_beside_ours() -> None:
    """Names are the convention's as Prometheus writes them, and the convention's required attributes are labels."""
    metrics, conventions = Metrics("m", EngineConfig("file:///m")), vars(gen_ai_metrics)
    meter = metrics.meter(EngineRequest("r", (1, 2), SamplingParams(4), arrival=time.monotonic() - 4.0), "chat")
    meter.take(TokenOutput("r", (1,), None, 2, 0, 0.1))
    meter.take(TokenOutput("r", (2, 3), None, 2, 0))
    meter.end("stop")
    metrics.meter(EngineRequest("s", (1,), SamplingParams(4), arrival=0.0), "chat").end("error")
    metrics.meter(EngineRequest("e", (1,), SamplingParams(1), arrival=0.0), "embeddings").end("stop")
    families = {family.name: family for family in text_string_to_metric_families(metrics.text().decode())}
    counts = {}
    for name in ("REQUEST_DURATION", "TIME_TO_FIRST_TOKEN", "TIME_PER_OUTPUT_TOKEN"):
        written = conventions[f"GEN_AI_SERVER_{name}"].replace(".", "_") + "_seconds"
        for one in families[written].samples:
            assert {"gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"} <= set(one.labels)
            if one.name.endswith("_count"):
                counts[name, one.labels["gen_ai_operation_name"]] = one.value
    assert counts == {
        ("REQUEST_DURATION", "chat"): 1, ("REQUEST_DURATION", "embeddings"): 1,
        ("TIME_TO_FIRST_TOKEN", "chat"): 1, ("TIME_PER_OUTPUT_TOKEN", "chat"): 1,
    }  # fmt: skip


def test_labels_are_escaped_and_buckets_are_cumulative() -> None:
    histogram = Histogram("x", "help", {"model_name": 'a"b\\c'}, (1.0, 2.0), "kind")
    histogram.observe(1.0, label="k")
    histogram.observe(5.0, 2, label="k")
    samples = [one for family in text_string_to_metric_families(histogram.text()) for one in family.samples]
    assert [(one.labels.get("le"), one.value) for one in samples] == [
        ("1.0", 1), ("2.0", 1), ("+Inf", 3), (None, 3), (None, 11),
    ]  # fmt: skip
    assert samples[0].labels["model_name"] == 'a"b\\c' and samples[0].labels["kind"] == "k"
