"""Protects the evidence from before a rollout: when one begins, each gateway's last 20 minutes are read again for their
load-adjusted times, once, and no slice counts twice. The observation has them, and the verdict on the canary's own slices stays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from support.gateway.two_windows import ADDRESSES, KEY, Gateways, adjusted, serving
from support.sample_service import sample

from pagefleet_contract.names import API_VERSION, KIND
from pagefleet_operator.domain.analysis.adjusted.reference import RETAINED_SECONDS
from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.status import Status
from pagefleet_operator.kube.client import Api, Document
from pagefleet_operator.kube.store import Store
from pagefleet_operator.kube.versions import Versions
from pagefleet_operator.metrics import gateway_windows
from pagefleet_operator.metrics.engine_readings import EngineReadings
from pagefleet_operator.metrics.engine_windows import EngineWindows
from pagefleet_operator.metrics.fetching import measuring_session
from pagefleet_operator.metrics.gateway_windows import PAST_READS, PAST_SECONDS, GatewayWindows
from pagefleet_operator.metrics.prometheus_client import Prometheus
from pagefleet_operator.metrics.prometheus_windows import PrometheusWindows
from pagefleet_operator.metrics.promql_gates import PrometheusGates
from pagefleet_operator.observe import Gatherer, Sources


@pytest_asyncio.fixture
async def gateways() -> AsyncIterator[Gateways]:
    async with serving() as started:
        yield started


class TwoGateways(Api):
    """An API server that has the gateways' pods and nothing else."""

    async def get(self, path: str, **query: str) -> Document:
        items = [{"metadata": {"name": address}, "status": {"podIP": address}} for address in ADDRESSES]
        return {"items": items if path.endswith("/pods") else [], "metadata": {}}

    async def find(self, path: str) -> Document | None:
        return None


async def idle(gateways: Gateways, read: GatewayWindows, seconds: int, *, judged: bool) -> tuple[Slice, ...] | None:
    """Let requests come and be read for a while."""
    shown = None
    for second in range(0, seconds, 10):
        gateways.pass_time(10.0)
        if second % 30 == 0:
            shown = await read.read(list(ADDRESSES), *KEY, judged=judged)
    return shown


def asked_again(gateways: Gateways, since: int, *ends: float) -> int:
    """How many of the questions from the one numbered `since` on are for the past of a gateway whose slices end at one of `ends`."""
    return sum(any(0 <= end - PAST_SECONDS - start < 40 for end in ends) for start in gateways.asked[since:])


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("offset", [0.0, 7200.0])
async def test_a_rollout_that_begins_finds_what_was_before_it_once(
    gateways: Gateways, offset: float, failing: int
) -> None:
    """Also where gateways fail to answer at first, and where a gateway's clock is hours off. Arrivals count as before."""
    gateways.restart(ADDRESSES[0], offset)
    async with aiohttp.ClientSession() as session:
        read = GatewayWindows(session, lambda: gateways.now)
        thin = await idle(gateways, read, 1800, judged=False)
        assert not adjusted(thin), "nobody needs them without a rollout"
        before, asked, answered = gateways.now, len(gateways.asked), len(gateways.counted)
        gateways.silent = failing
        shown = await idle(gateways, read, 120, judged=True)
        load = read.load(*KEY)
    known = adjusted(shown)
    assert sum(known.values()) == pytest.approx(2 * (PAST_SECONDS + 120) / 10, abs=8)
    assert before - PAST_SECONDS - 40 <= min(start for _, start in known) < before - RETAINED_SECONDS
    assert max(start for _, start in known) > before + 80
    assert {instance for instance, _ in known} == {f"{ADDRESSES[0]}-{offset}", ADDRESSES[1]}
    assert asked_again(gateways, asked, before, before + offset) == 2 + failing, "each gateway's past is read once"
    assert max(gateways.counted[answered:]) < 20, "the counts of the past are not sent again"
    assert load is not None and sum(load.arrivals) * load.step == pytest.approx(2 * 192, abs=8)


async def test_a_past_that_cannot_be_read_is_given_up_and_the_newest_slices_come(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aiohttp.ClientSession() as session:
        read = GatewayWindows(session, lambda: gateways.now)
        await idle(gateways, read, 1800, judged=False)
        gateways.silent = 2 * PAST_READS
        shown = await idle(gateways, read, 300, judged=True)
        assert 2 * 25 <= sum(adjusted(shown).values()) < 2 * 60
        await idle(gateways, read, 60, judged=False)
        monkeypatch.setattr(gateway_windows, "MAX_BYTES", 10_000)
        before, since = gateways.now, len(gateways.asked)
        shown = await idle(gateways, read, 120, judged=True)
        assert asked_again(gateways, since, before) == 2 and asked_again(gateways, since + 2, before) == 0
        assert 2 * 10 <= sum(adjusted(shown).values()) < 2 * 60


async def test_the_observation_of_a_rollout_has_what_was_before_it(gateways: Gateways) -> None:
    spec = {**sample()["spec"], "scaling": {"min": 1, "max": 4}}
    metadata: dict[str, Any] = {"namespace": KEY[0], "name": KEY[1], "uid": "u", "generation": 1}
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
    service: Document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    async with measuring_session() as session:
        store, api, prometheus = Store(), TwoGateways(None), Prometheus(session, "")
        sources = Sources(
            engines=EngineReadings(session),
            windows=GatewayWindows(session, lambda: gateways.now),
            engine_windows=EngineWindows(session),
            prometheus_windows=PrometheusWindows(prometheus),
            gates=PrometheusGates(prometheus),
            image="operator",
        )
        gatherer = Gatherer(api, Versions(api), store, sources, "pagefleet-system")
        for _ in range(60):
            gateways.pass_time(30.0)
            thin = await gatherer.observe({**service, "status": codec.dump(Status(stable="a"))})
        begun = gateways.now
        gateways.pass_time(4.0)
        gateways.now += 4.0
        canary = await gatherer.observe({**service, "status": codec.dump(Status(stable="a", canary="b"))})
    assert not adjusted(thin.slices)
    known = adjusted(canary.slices)
    assert sum(known.values()) == 2 * (PAST_SECONDS / 30 + 3), "of the time before the newest slice, and that itself"
    assert begun - PAST_SECONDS - 40 <= min(start for _, start in known) < begun - RETAINED_SECONDS
