"""Protects the decisions about a service from its own pickers, which a tenant runs: whatever numbers they send, the answer is read or
refused with a message, and decisions go on."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from support.loopback import own_address
from support.virtual.cluster import TICK, Cluster, started

from pagefleet_contract.names import GATEWAY_INTERNAL_PORT
from pagefleet_operator.metrics.gateway_windows import GatewayWindows, Own

ADDRESS, KEY = own_address(0), ("ns", "chat")
ABSURD = ["1.7e308", "-1.7e308", "1e300", "1e20", "-1", "0", "5e-324", "NaN", "Infinity", "1000000000000", "253402300799", "253402300800",
          "9223372036854775808", "1" + "0" * 30, "1" + "0" * 309, '"1"', "null", "[]", "true"]  # fmt: skip
PLACES = (
    "now",
    "sliceSeconds",
    "held",
    "start",
    "requests",
    "errors",
    "arrivals",
    "started",
    "tokens",
    "count",
    "bucket",
    "slo",
)


class Picker:
    """A tenant's picker that answers with a text."""

    text = "{}"

    async def windows(self, _: web.Request) -> web.Response:
        return web.Response(text=self.text, content_type="application/json")


@pytest_asyncio.fixture
async def picker() -> AsyncIterator[Picker]:
    made, application = Picker(), web.Application()
    application.router.add_get("/windows", made.windows)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, ADDRESS, GATEWAY_INTERNAL_PORT).start()
        yield made
    finally:
        await runner.cleanup()


def answers(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Answers about both revisions, each with an absurd number in one place, and that place."""
    usual = {"now": f"{cluster.now}", "sliceSeconds": "2", "held": "0", "start": f"{cluster.now - TICK}", "requests": "9",
             "errors": "1", "arrivals": "9", "started": "9", "tokens": "9", "count": "4", "bucket": "300", "slo": "2"}  # fmt: skip
    for place, number in itertools.product(PLACES, ABSURD):
        value = {**usual, place: number}
        table = f"{{{json.dumps(value['bucket'])}: {value['count']}}}"
        stratum = f'{{"64-180": {{"relative": {table}, "ttft": {table}, "waiting": {table}, "unmeasured": {table}}}}}'
        listed = [
            f'{{"start": {value["start"]}, "revision": "{revision}", "stratum": "{name}", {more}}}'
            for revision in (cluster.status.stable, cluster.status.canary)
            for name, more in (
                ("64-180", f'"requests": {value["requests"]}, "errors": {value["errors"]}, "tokens": {value["tokens"]}, '
                           f'"started": {value["started"]}, "ttft": {table}, "e2e": {table}, "tpot": {table}, '
                           f'"waiting": {table}, "running": {table}, "unmeasuredWaiting": {table}'),
                ("", f'"requests": 0, "errors": 0, "load": {stratum}'),
                ("", f'"requests": 0, "errors": 0, "wholeLoad": {stratum}'),
            )
        ]  # fmt: skip
        head = f'"arrivals": {value["arrivals"]}, "requests": 0, "errors": 0, "slo": {{"o": [{value["slo"]}, 0]}}'
        listed.append(f'{{"start": {value["start"]}, "revision": "", "stratum": "", {head}}}')
        parts = f'"now": {value["now"]}, "sliceSeconds": {value["sliceSeconds"]}, "held": {value["held"]}'
        yield f'{{"instance": "{place} {number}", {parts}, "slices": [{", ".join(listed)}]}}', f"{place} {number[:30]}"


@pytest.mark.parametrize("judged", [True, False])
async def test_no_number_of_a_picker_keeps_a_decision_from_being_made(picker: Picker, judged: bool) -> None:
    """`now: 1.7e308` made every decision about the service fail: no rollback, no scaling, and no condition."""
    cluster = started(steps=[{"weight": 50, "hold": "1h"}])
    cluster.until(lambda status: any(entry.revision == status.canary and entry.weight for entry in status.traffic))
    async with aiohttp.ClientSession() as session:
        for text, place in answers(cluster):
            picker.text = text
            windows, status = GatewayWindows(session, lambda: cluster.now), cluster.status
            for _ in range(2):
                slices = await windows.read([], *KEY, judged=judged, own=Own((ADDRESS,)))
                seen = replace(cluster.observe(), slices=slices, load=windows.load(*KEY), slo=windows.attained(*KEY))
                assert cluster.decided(seen).stable, place
                json.dumps(cluster.plan.document if cluster.plan else None, allow_nan=False)
                cluster.now += TICK
            cluster.status = status


async def test_a_picker_without_a_time_is_named_in_the_log(picker: Picker, caplog: pytest.LogCaptureFixture) -> None:
    async with aiohttp.ClientSession() as session:
        for number in ("1.7e308", "NaN", '"noon"'):
            picker.text = f'{{"instance": "g", "now": {number}, "sliceSeconds": 2, "slices": []}}'
            caplog.clear()
            windows = GatewayWindows(session, lambda: 1e9)
            with caplog.at_level(logging.WARNING):
                assert await windows.read([], *KEY, judged=False, own=Own((ADDRESS,))) is None
            assert f"gateway {ADDRESS}: `now` must be UNIX seconds from 0 to 253402300799, got " in caplog.text
