"""Protects that operator and gateway read the same numbers off other engines' pages, by the annotation that the operator
writes to the pods; and that a page without a number that its engine should tell is no reading at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden_manifests import child_of, spec_of

from pagefleet_contract.engine_metrics import RUNNING, EngineMetrics, engine_of
from pagefleet_contract.names import ENGINE_ANNOTATION
from pagefleet_gateway.cluster.engines import OWN_ENGINE, engine_from
from pagefleet_gateway.cluster.objects import pod_from
from pagefleet_gateway.cluster.readings import reading_in
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.metrics import cumulative, engine_readings

DATA = Path(__file__).parents[1] / "data"
CUSTOM_PAGE = """\
engine_requests{zone="a",state="waiting"} 2
engine_requests{zone="b",state="waiting"} 3
engine_requests{state="running"} 4 1730000000000
engine_requests{state="done"} 900
engine_info{name="x",blocks="200",kind="y"} 1
engine_blocks_free 50
engine_tokens_total 77
engine_first_token_seconds_bucket{le="1"} 3
engine_first_token_seconds_bucket{le="+Inf"} 5
engine_request_seconds_bucket{le="1"} 1
engine_request_seconds_bucket{le="+Inf"} 5
engine_done_total{how="ok"} 4
engine_done_total{how="error"} 1
"""
PAGES = {name: (DATA / f"metrics-{name}.txt").read_text() for name in ("vllm", "sglang", "tgi")} | {
    "custom": CUSTOM_PAGE
}


def annotation(name: str) -> str:
    metadata = deployment(child_of(spec_of(name)), 1)["spec"]["template"]["metadata"]
    return str(metadata["annotations"][ENGINE_ANNOTATION])


def metrics(name: str) -> EngineMetrics:
    names = engine_of({"metadata": {"annotations": {ENGINE_ANNOTATION: annotation(name)}}}).metrics
    assert names is not None
    return names


@pytest.mark.parametrize("name", PAGES)
def test_operator_and_gateway_read_the_same(name: str) -> None:
    theirs = engine_readings.parse(PAGES[name], metrics(name))
    ours = reading_in(PAGES[name].encode(), engine_from(annotation(name)))
    assert theirs is not None
    assert ours is not None
    assert ours.cache_tokens == (273 * 128 if name == "vllm" else 0), "only vLLM's page states the size of its pages"
    load = theirs.load
    assert (load.waiting, load.running) == (ours.waiting, ours.running)
    if load.kv_pages_total:
        assert load.kv_pages_used / load.kv_pages_total == pytest.approx(ours.kv_usage, abs=1 / load.kv_pages_total)
    else:
        assert (name, ours.kv_usage) == ("tgi", 0.0)


def test_what_the_pages_say() -> None:
    assert {name: load_of(name) for name in ("sglang", "tgi", "custom")} == {
        "sglang": (2826, 162, 442353, round(442353 * 0.72)),
        "tgi": (7, 12, None, None),
        "custom": (5, 4, 200, 50),
    }
    waiting, running, total, free = load_of("vllm")
    assert waiting is not None
    assert running is not None
    assert waiting + running > 0
    assert total is not None
    assert free is not None
    assert 0 < free < total


def load_of(name: str) -> tuple[int | None, ...]:
    """Return waiting and running requests, and KV pages in all and free, of an engine's stored page."""
    reading = engine_readings.parse(PAGES[name], metrics(name))
    assert reading is not None
    load = reading.load
    return load.waiting, load.running, load.kv_pages_total, load.kv_pages_free


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("signal", ["waiting", "running", "kvUsage", "kvPagesFree"])
def test_a_number_that_should_be_there_and_is_not_makes_no_reading(name: str, signal: str) -> None:
    selector = getattr(metrics(name), signal)
    if not selector:
        return
    word = selector.partition("{")[0]
    text = "\n".join(line for line in PAGES[name].splitlines() if not line.startswith(word)) + "\n"
    assert engine_readings.parse(text, metrics(name)) is None
    if signal in ("waiting", "running"):
        assert reading_in(text.encode(), engine_from(annotation(name))) is None


def test_a_share_without_a_count_is_of_nominal_pages() -> None:
    reading = engine_readings.parse("w 1\nr 2\nu 0.25\n", EngineMetrics(waiting="w", running="r", kvUsage="u"))
    assert reading is not None
    assert (reading.load.kv_pages_total, reading.load.kv_pages_free) == (
        engine_readings.NOMINAL_PAGES,
        engine_readings.NOMINAL_PAGES * 3 // 4,
    )
    assert engine_readings.parse("w 1\nr 2\nu nan\n", EngineMetrics(waiting="w", running="r", kvUsage="u")) is None


@pytest.mark.parametrize(
    ("name", "signals"),
    [
        ("vllm", {"ttft", "e2e", "itl", "queue"}),
        ("sglang", {"ttft", "e2e", "itl", "queue"}),
        ("tgi", {"e2e", "queue"}),
        ("custom", {"ttft", "e2e"}),
    ],
)
def test_latency_histograms_are_those_that_the_engine_has(name: str, signals: set[str]) -> None:
    counts = cumulative.parse(PAGES[name], 5.0, metrics(name))
    assert counts is not None
    assert set(counts.buckets) == signals


def test_an_engines_slice_has_its_own_signals_and_failures() -> None:
    after = cumulative.parse(PAGES["custom"], 5.0, metrics("custom"))
    quiet = "\n".join(f"{line.rpartition(' ')[0]} 0" for line in CUSTOM_PAGE.splitlines() if "1730" not in line)
    before = cumulative.parse(quiet + "\n", 0.0, metrics("custom"))
    assert before is not None
    assert after is not None
    piece = cumulative.difference(before, after, cumulative.Pod("p", "10.0.0.1", "aaaa"), 0.0)
    assert isinstance(piece, Slice)
    assert (piece.requests, piece.errors, sum(piece.latency["ttft"].values())) == (5, 1, 5)
    assert set(piece.latency) == {"ttft", "e2e"}


def test_the_gateway_meets_a_pod_at_its_engines_port() -> None:
    raw = {
        "metadata": {
            "uid": "1",
            "name": "p",
            "namespace": "n",
            "annotations": {ENGINE_ANNOTATION: annotation("custom")},
        },
        "status": {"podIP": "10.0.0.7", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    pod = pod_from(raw)
    assert pod is not None
    assert (pod.address, pod.engine.path, pod.engine.scraped) == ("10.0.0.7:9090", "/telemetry", True)


@pytest.mark.parametrize(
    ("page", "tokens"),
    [
        ("pagefleet_kv_pages 100\npagefleet_kv_pages_free 7\npagefleet_kv_page_tokens 16\n", 1600),
        ("pagefleet_kv_pages 100\n", 0),
        ('vllm:cache_config_info{block_size="16",num_gpu_blocks="50"} 1\n' * 2, 1600),
        ('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1\n', 0),
        ('vllm:cache_config_info{block_size="16"} 1\n', 0),
        ('vllm:cache_config_info{block_size="-16",num_gpu_blocks="50"} 1\n', 0),
        ('vllm:cache_config_info{block_size="1e300",num_gpu_blocks="1e300"} 1\n', 0),
    ],
)
def test_the_size_of_a_cache_is_read_where_an_engine_states_it(page: str, tokens: float) -> None:
    reading = reading_in(f"{RUNNING} 1\n{page}".encode())
    assert reading is not None and (reading.running, reading.cache_tokens) == (1, tokens)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"port": "x"}', '{"port": 9}', '{"port": 9, "metrics": {"waiting": "a b"}}']
)
def test_an_annotation_that_cannot_be_read_hides_the_load_and_not_the_pod(text: str) -> None:
    engine = engine_from(text)
    assert not engine.scraped
    assert engine.port in (8000, 9)
    assert engine_from("") is OWN_ENGINE
