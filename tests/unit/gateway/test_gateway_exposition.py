"""Protects the metrics page: the text that Prometheus' own library reads back, rendered in steps that leave the loop free."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pagefleet_gateway.measuring.exposition import Exposition, pieces

AWKWARD = 'a "name" with \\ and\na line'


def registry(services: int) -> CollectorRegistry:
    filled = CollectorRegistry()
    requests = Counter("requests", f"What {AWKWARD} means", ("service", "code"), registry=filled)
    times = Histogram("times_seconds", "Times", ("service",), registry=filled)
    Gauge("bare", "No labels", registry=filled).set(float("nan"))
    Counter("plain", "No labels either", registry=filled).inc(3)
    for number in range(services):
        name = f"{AWKWARD} {number}"
        requests.labels(name, "200").inc(number)
        times.labels(name).observe(number / 10)
    return filled


def families(text: str) -> dict[str, tuple[str, str, list[str]]]:
    read = text_string_to_metric_families(text)
    return {
        one.name: (one.documentation, one.type, sorted(f"{s.name} {sorted(s.labels.items())} {s.value}" for s in one.samples))
        for one in read
        if not one.name.endswith("_created")
    }  # fmt: skip


def test_the_page_reads_as_the_librarys_own() -> None:
    filled = registry(20)
    assert families("".join(pieces(filled))) == families(generate_latest(filled).decode())


async def test_a_page_of_500_services_stalls_the_loop_for_less_than_10_ms() -> None:
    filled = registry(500)
    exposition, longest, done = Exposition(filled), 0.0, False

    async def ticks() -> None:
        nonlocal longest
        before = time.thread_time()
        while not done:
            await asyncio.sleep(0)
            now = time.thread_time()  # not wall time: other work of the machine is no stall of ours
            longest, before = max(longest, now - before), now

    watching = asyncio.create_task(ticks())
    page = b"".join(await exposition.page())
    done = True
    await watching
    assert families(page.decode()) == families(generate_latest(filled).decode())
    assert longest < 0.01


async def test_scrapes_at_the_same_time_share_a_page_and_one_that_goes_away_ends_nobody_elses() -> None:
    filled = registry(200)
    exposition = Exposition(filled)
    first, second = asyncio.create_task(exposition.page()), asyncio.create_task(exposition.page())
    await asyncio.sleep(0)
    first.cancel()
    page = await second
    assert b"".join(page).count(b"requests_total{") == 200
    third = await exposition.page()
    assert third is not page
