"""Protects what the guard reads of Prometheus, over real HTTP: each scrape of each pod is compared as it was, a restart and
a long silence are gaps, and silent, empty, senseless or late samples are no measurement, with the reason named."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import parse_qs

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from pagefleet_contract.engine_metrics import OURS
from pagefleet_engine.api.observability.metrics import Metrics
from pagefleet_engine.core.requests import EngineConfig
from pagefleet_operator.domain.analysis import guard
from pagefleet_operator.domain.analysis.guard import Comparison
from pagefleet_operator.domain.analysis.verdict import Outcome
from pagefleet_operator.domain.spec.rollout import Guard, LatencyGuard
from pagefleet_operator.domain.spec.schema.guard_signals import Source
from pagefleet_operator.domain.status.observation import Observation, Slice
from pagefleet_operator.domain.status.status import Status
from pagefleet_operator.metrics.cumulative import MAX_GAP_SECONDS, Counts, Past, Pod
from pagefleet_operator.metrics.metrics_page import samples
from pagefleet_operator.metrics.prometheus_client import Prometheus
from pagefleet_operator.metrics.prometheus_windows import LATE_SECONDS, PrometheusWindows
from pagefleet_operator.metrics.series import Query, scrapes, unscraped

OWN = Query("team-a", "chat", ("ttft", "itl"))
MESH = Query("team-a", "chat", ("e2e",), 'request_milliseconds{workload="$service-$revision"}')
PATIENCE = 60.0  # seconds for a query; the operator gives 2, which a busy machine may need by itself
PODS = (Pod("chat-aaaa-1", "", "aaaa"), Pod("chat-cccc-1", "", "cccc"))
Series = list[dict[str, Any]]


class StubPrometheus:
    """The data of a Prometheus: the metrics pages of pods at each scrape, and the queries that it has answered."""

    def __init__(self) -> None:
        self.pages: dict[str, list[tuple[float, str]]] = {}
        self.queries: list[str] = []
        self.instead: str | None = None
        self.client: Prometheus

    def matrix(self, query: str) -> Series:
        values_by_labels: dict[tuple[Any, ...], list[Any]] = {}
        for pod, pages in self.pages.items():
            if pod.split("-")[1] not in query:
                continue
            for at, text in pages:
                for name, series in samples(text, _names(text)).items():
                    for one in series:
                        labels = {**one.labels, "pod": pod, "instance": pod, "__name__": name}
                        values_by_labels.setdefault(tuple(sorted(labels.items())), []).append([at, str(one.value)])
        return [{"metric": dict(labels), "values": values} for labels, values in values_by_labels.items()]

    async def answer(self, request: web.Request) -> web.Response:
        query = parse_qs(await request.text())["query"][0]
        self.queries.append(query)
        if self.instead is not None:
            return web.Response(text=self.instead)
        document = {"status": "success", "data": {"resultType": "matrix", "result": self.matrix(query)}}
        return web.Response(text=json.dumps(document))


def _names(text: str) -> Iterator[str]:
    return (line.split("{")[0] for line in text.splitlines() if not line.startswith("#"))


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[tuple[StubPrometheus, PrometheusWindows]]:
    stored, app = StubPrometheus(), web.Application()
    app.router.add_post("/api/v1/query", stored.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        stored.client = Prometheus(session, f"http://127.0.0.1:{runner.addresses[0][1]}", timeout=PATIENCE)
        yield stored, PrometheusWindows(stored.client, interval=0.0)
    await runner.cleanup()


def served(metrics: Metrics, requests: int, seconds: float) -> str:
    for _ in range(requests):
        metrics.ttft.observe(seconds)
        metrics.itl.observe(seconds / 20, 30)
        metrics.finished("stop", seconds, 31)
    return metrics.text().decode()


def scraped(stored: StubPrometheus, ago: tuple[float, ...] = (40.0, 25.0, 10.0), slow: float = 1.0) -> None:
    now = time.time()
    for pod, factor in zip(PODS, (1.0, slow), strict=True):
        metrics = Metrics("m", EngineConfig("file:///m"))
        stored.pages[pod.name] = [(now - seconds, served(metrics, 5, 0.1 * factor)) for seconds in ago]


async def read(windows: PrometheusWindows, query: Query = OWN) -> tuple[Slice, ...] | None:
    return await windows.read(PODS, ("aaaa", "cccc"), query)


async def test_what_came_between_two_scrapes_of_each_pod(pair: tuple[StubPrometheus, PrometheusWindows]) -> None:
    prometheus, windows = pair
    scraped(prometheus, slow=3.0)
    slices = await read(windows)
    assert slices is not None
    assert [(piece.revision, piece.requests, round(piece.seconds)) for piece in slices] == [
        ("aaaa", 5, 15), ("aaaa", 5, 15), ("cccc", 5, 15), ("cccc", 5, 15),
    ]  # fmt: skip
    assert {sum(piece.edged["itl"].counts.values()) for piece in slices} == {5}, "as many as requests, not as tokens"
    for piece, seconds in zip(slices, (0.1, 0.1, 0.3, 0.3), strict=True):
        ((low, high),) = piece.edged["ttft"].buckets()
        assert low < seconds <= high
    stable = prometheus.queries[0]
    assert 'namespace="team-a",service="chat",revision="aaaa"}[300s]' in stable
    assert "pagefleet_time_to_first_token_seconds_bucket" in stable
    assert "e2e" not in stable, "what is not judged is not asked for"
    assert await read(windows) == slices, "the same scrapes are counted once"
    assert prometheus.queries[-1].endswith("[30s]"), "and asked for once"


async def test_a_revision_that_comes_back_is_not_counted_twice(pair: tuple[StubPrometheus, PrometheusWindows]) -> None:
    prometheus, windows = pair
    scraped(prometheus)
    slices = await read(windows)
    assert await windows.read(PODS[:1], ("aaaa",), OWN) is not None
    assert await read(windows) == slices


async def test_a_restart_and_a_long_silence_are_gaps(pair: tuple[StubPrometheus, PrometheusWindows]) -> None:
    prometheus, windows = pair
    scraped(prometheus)
    metrics, now = Metrics("m", EngineConfig("file:///m")), time.time()
    prometheus.pages[PODS[1].name] = [
        (now - 40, served(Metrics("m", EngineConfig("file:///m")), 9, 0.1)),
        (now - 25, served(metrics, 4, 0.1)),
        (now - 10, served(metrics, 2, 0.1)),
    ]
    slices = await read(windows)
    assert slices is not None
    assert [piece.requests for piece in slices if piece.revision == "cccc"] == [2]


def test_after_a_restart_the_next_requests_count_again() -> None:
    """Also when fewer have ended since than before it; a pod that nobody asked for a while begins anew."""

    def reading(at: float, count: float) -> Counts:
        return Counts(at, {"ttft": {0.1: count, math.inf: count}}, count, 0.0)

    past = Past()
    for at, count in ((0.0, 50.0), (10.0, 60.0), (20.0, 3.0), (30.0, 7.0), (40.0, 7.0), (50.0, 8.0)):
        past.add(PODS[0], reading(at, count))
    assert [(piece.start, piece.requests) for piece in past.slices] == [(0.0, 10), (20.0, 4), (40.0, 1)]
    past.add(PODS[0], reading(50.0 + MAX_GAP_SECONDS + 1, 90.0))
    assert len(past.slices) == 3
    past.add(PODS[0], reading(50.0 + MAX_GAP_SECONDS + 9, 91.0))
    assert past.slices[-1].requests == 1


async def test_another_histogram_in_milliseconds(pair: tuple[StubPrometheus, PrometheusWindows]) -> None:
    prometheus, windows = pair
    now = time.time()
    for pod in PODS:
        labels = f'workload="chat-{pod.revision}"'
        prometheus.pages[pod.name] = [
            (now - ago, "".join(f'request_milliseconds_bucket{{{labels},le="{le}"}} {n * 4}\n'
                                for le, n in (("50", 0), ("250", number), ("+Inf", number))))
            for number, ago in enumerate((30, 20, 10))
        ]  # fmt: skip
    slices = await read(windows, MESH)
    assert slices is not None
    assert [piece.requests for piece in slices] == [4, 4, 4, 4]
    assert slices[0].edged["e2e"].buckets() == {(0.05, 0.25): 4}
    assert prometheus.queries[0] == 'request_milliseconds_bucket{workload="chat-aaaa"}[300s]'


def nan(stored: StubPrometheus) -> None:
    pages = stored.pages[PODS[1].name]
    stored.pages[PODS[1].name] = [(at, text.replace('le="+Inf"} 10', 'le="+Inf"} NaN')) for at, text in pages]


def falling(stored: StubPrometheus) -> None:
    at, text = stored.pages[PODS[0].name][-1]
    stored.pages[PODS[0].name][-1] = (at, text.replace('le="+Inf"} 15', 'le="+Inf"} 2'))


def late(stored: StubPrometheus) -> None:
    stored.pages[PODS[1].name] = [(at - LATE_SECONDS, text) for at, text in stored.pages[PODS[1].name]]


BROKEN: list[tuple[str, Callable[[StubPrometheus], Any], str]] = [
    ("no canary", lambda pair: pair.pages.pop(PODS[1].name), "no series of it (revision cccc)"),
    ("empty", lambda pair: pair.pages.clear(), "no series of it (revision aaaa)"),
    ("late", late, "no fresh samples of pod chat-cccc-1 (the newest is 10"),
    ("NaN", nan, "cannot be read"),
    ("falling", falling, "cannot be read"),
    ("no JSON", lambda pair: setattr(pair, "instead", "gone"), "does not answer"),
    ("a vector", lambda pair: setattr(pair, "instead", '{"status": "success", "data": {"resultType": "vector", "result": []}}'),
     "a vector, not samples over time"),
    ("an error", lambda pair: setattr(pair, "instead", '{"status": "error", "error": "query timed out"}'), "query timed out"),
    ("not series", lambda pair: setattr(pair, "instead", '{"status": "success", "data": {"resultType": "matrix", "result": [1, null]}}'),
     "cannot be read"),
]  # fmt: skip


@pytest.mark.parametrize(("break_it", "words"), [one[1:] for one in BROKEN], ids=[one[0] for one in BROKEN])
async def test_what_is_not_there_is_no_measurement(
    pair: tuple[StubPrometheus, PrometheusWindows], break_it: Callable[[StubPrometheus], Any], words: str
) -> None:
    """Also when there was a good answer before; when Prometheus is well again, so is the measurement."""
    prometheus, windows = pair
    scraped(prometheus)
    assert await read(windows) is not None
    break_it(prometheus)
    other = PrometheusWindows(prometheus.client, interval=0.0)
    slices = await read(other)
    assert slices is None
    assert words in other.silence(OWN)
    chosen = Guard((LatencyGuard("ttft", 0.95, 0.15, 0.99, 10, "Prometheus"),), 0.01, 0, "hold", 60.0,
                   error_source=Source.PROMETHEUS)  # fmt: skip
    observation = Observation("ns", "chat", "uid", 1, {}, Status(), silence={"prometheus": other.silence(OWN)})
    judged = guard.assess(observation, chosen, Comparison("aaaa", "cccc", since=0.0, now=100.0))
    assert judged is not None
    assert judged.outcome is Outcome.INCONCLUSIVE
    assert words in judged.record.message
    prometheus.instead = None
    scraped(prometheus)
    assert await read(other) is not None
    assert other.silence(OWN) == ""


async def test_no_prometheus_at_all() -> None:
    async with aiohttp.ClientSession() as session:
        for url, words in (("", "PAGEFLEET_PROMETHEUS_URL"), ("http://127.66.0.1:1", "does not answer")):
            windows = PrometheusWindows(Prometheus(session, url))
            assert await asyncio.wait_for(read(windows), 10) is None
            assert words in windows.silence(OWN)


async def test_pods_that_targets_do_not_name_are_counted() -> None:
    """Two ready pods and one scraped target: one of them is not seen."""
    now = time.time()
    series = [
        {"metric": {"__name__": f"{name}_bucket", "instance": "a:8000", "le": "+Inf"}, "values": [[now, "4"]]}
        for name in (OURS.ttft, OURS.itl)
    ]
    document = {"status": "success", "data": {"resultType": "matrix", "result": series}}
    readings_by_target, reason = await scrapes(document, OWN, OURS, {})
    assert reason == ""
    newest = {target: readings[-1].time for target, readings in readings_by_target.items()}
    assert unscraped(newest, ["p1"], now, LATE_SECONDS) == ""
    assert "p2" in unscraped(newest, ["p1", "p2"], now, LATE_SECONDS)


async def test_a_long_answer_does_not_hold_up_the_event_loop(
    pair: tuple[StubPrometheus, PrometheusWindows],
) -> None:
    """Another task runs again and again while 2 MiB are read. Its longest pause, in processor time, is a small part of the
    whole: 2.7 s of 2.7 s with 14 MiB when they were read at once."""
    prometheus, windows = pair
    now, name = time.time(), "request_milliseconds_bucket"
    series = [
        {
            "metric": {"__name__": name, "instance": f"10.0.0.{pod}:8000", "pod": f"chat-aaaa-{pod}", "le": le},
            "values": [[now - 200 + 5 * scrape, str((scrape + 1) * (place + 1))] for scrape in range(40)],
        }
        for pod in range(50)
        for place, le in enumerate((*map(str, range(1, 30)), "+Inf"))
    ]
    prometheus.instead = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}})
    gaps, read_all = [0.0], asyncio.Event()

    async def tick() -> None:
        last = time.thread_time()
        while not read_all.is_set():
            await asyncio.sleep(0)
            gaps.append(time.thread_time() - last)
            last = time.thread_time()

    ticking = asyncio.create_task(tick())
    pods = [Pod(f"chat-aaaa-{pod}", "", "aaaa") for pod in range(50)]
    gc.collect()  # collections of what other tests left would be measured as well
    gc.freeze()
    began = time.thread_time()
    slices = await windows.read(pods, ("aaaa",), MESH)
    took = time.thread_time() - began
    gc.unfreeze()
    read_all.set()
    await ticking
    assert slices is not None and len(slices) == 50 * 39, windows.silence(MESH)
    assert max(gaps) < took / 4, f"{max(gaps) * 1000:.0f} ms of {took * 1000:.0f} ms"
