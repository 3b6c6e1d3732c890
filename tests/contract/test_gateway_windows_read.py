"""Protects what arrived from being counted twice: gateways that fall silent one by one are asked again and again. And what is
judged from clocks: neither a gateway's nor the operator's that jumps by hours freezes the windows or moves them away, and the
requests of gateways whose clocks differ are judged together. A gateway that is away does not fill the log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest
import pytest_asyncio
from support.gateway.two_windows import ADDRESSES, BEGIN, KEY, Gateways, serving
from support.virtual.traffic import GUARD

from pagefleet_gateway.measuring.slices import End, Outcome
from pagefleet_gateway.picking.ledger import Group
from pagefleet_operator.domain.analysis import guard, sources
from pagefleet_operator.domain.analysis.guard import Comparison
from pagefleet_operator.domain.analysis.verdict import Outcome as Judged
from pagefleet_operator.domain.analysis.verdict import Verdict
from pagefleet_operator.domain.status.observation import Observation, Slice
from pagefleet_operator.domain.status.status import Status
from pagefleet_operator.metrics.gateway_windows import MAX_SKEW_SECONDS, MAX_SLICES, GatewayWindows

OLD_SECONDS, NEW_SECONDS = 120, 480  # before the canary, and with it
SKEWS = [
    (0.0, 0.0),
    (30.0, -30.0),
    (-30.0, 30.0),
    (31.3, -28.7),
    (MAX_SKEW_SECONDS, -MAX_SKEW_SECONDS),
    (3600.0, -30.0),
    (30.0, 0.0),
]


@pytest_asyncio.fixture
async def gateways() -> AsyncIterator[Gateways]:
    async with serving() as started:
        yield started


@pytest.mark.parametrize("judged", [True, False])
async def test_each_arrival_counts_once_however_often_it_is_told(gateways: Gateways, judged: bool) -> None:
    _, late = ADDRESSES
    async with aiohttp.ClientSession() as session:
        read, told = GatewayWindows(session, lambda: gateways.now), 0
        for second in range(600):
            gateways.now = float(BEGIN + second)
            for address in ADDRESSES if second < 60 else (late,):
                gateways.windows[address].record_arrival(KEY, gateways.now)
                told += 1
            if second % 5 == 0:
                await read.read(list(ADDRESSES), *KEY, judged=judged)
        gateways.now += 10.0
        await read.read(list(ADDRESSES), *KEY, judged=judged)
        load = read.load(*KEY)
    assert load is not None
    assert sum(load.arrivals) * load.step == pytest.approx(told)


@pytest.mark.parametrize("hours", [-30.0, -1.0, 0.001, 1.0, 30.0])
async def test_slices_of_a_gateway_with_another_clock_lie_in_the_operator_s_time(
    gateways: Gateways, hours: float
) -> None:
    """Also after its address has gone to a gateway with a right clock, and to one with a wrong one again."""
    one, _ = ADDRESSES
    async with aiohttp.ClientSession() as session:
        read, told = GatewayWindows(session, lambda: gateways.now), 0
        for offset in (0.0, 3600.0 * hours, 0.0):
            gateways.restart(one, offset)
            begun = gateways.now
            for _ in range(20):
                gateways.now += 2.0
                gateways.windows[one].record_arrival(KEY, gateways.now)
                told += 1
                shown = await read.read([one], *KEY, judged=True)
            gateways.now += 4.0
            shown = await read.read([one], *KEY, judged=True)
            assert shown is not None
            assert sum(piece.arrivals or 0 for piece in shown) == told
            newest = [piece.start for piece in shown if piece.start >= begun]
            assert len(newest) >= 19 and max(newest) <= gateways.now
            load = read.load(*KEY)
            assert load is not None and load.age < 10.0


@pytest.mark.parametrize("hours", [-5.0, 5.0])
async def test_an_operator_s_clock_that_jumps_takes_the_new_slices_along(gateways: Gateways, hours: float) -> None:
    one, _ = ADDRESSES
    ahead = 0.0
    async with aiohttp.ClientSession() as session:
        read = GatewayWindows(session, lambda: gateways.now + ahead)
        for jump in (0.0, 3600.0 * hours, 0.0):
            ahead = jump
            for _ in range(10):
                gateways.now += 2.0
                gateways.windows[one].record_arrival(KEY, gateways.now)
                shown = await read.read([one], *KEY, judged=True)
            assert shown is not None
            recent = [piece for piece in shown if abs(piece.start - gateways.now - ahead) < 20.0]
            assert len(recent) >= 8, "the guard judges slices since a time by the operator's clock"


async def test_requests_count_when_their_slices_are_retained_no_longer(gateways: Gateways) -> None:
    """A step that asks for the requests of hours ends, although a busy service's slices fill the memory in minutes."""
    async with aiohttp.ClientSession() as session:
        read, sent, shown = GatewayWindows(session, lambda: gateways.now), 0, None
        for _ in range(MAX_SLICES // 200 + 10):
            gateways.now += 2.0
            for address in ADDRESSES:
                for stratum in range(100):
                    outcome = Outcome(Group(*KEY, "c", f"s{stratum}"), End.ANSWERED, 0.1, e2e=0.1)
                    gateways.windows[address].record_end(outcome, gateways.now)
                    sent += 1
            shown = await read.read(list(ADDRESSES), *KEY, judged=True)
        assert shown is not None and len(shown) < sent - 2000
        observation = Observation(*KEY, "uid", 1, {}, Status(), slices=shown, earlier=read.earlier(*KEY))
        counted = [
            sources.count_requests(observation, GUARD, "c", since, mirrored=False) for since in (BEGIN, BEGIN + 61)
        ]
        assert counted[0] == sent - 200, "all but those of the open slice"
        assert sent - 200 * 62 <= counted[1] <= sent - 200 * 30
        await read.read(list(ADDRESSES), *KEY, judged=False)
        assert not read.earlier(*KEY), "the next rollout counts its own"


async def two_gateways_read(gateways: Gateways, slow: str, factor: float) -> tuple[tuple[Slice, ...], float]:
    """Let each gateway answer a request a second for each revision; `slow` is the gateway at which the canary takes `factor`
    times as long. Return what the operator has read, and when the canary came. It reads with its own clock."""
    async with aiohttp.ClientSession() as session:
        read = GatewayWindows(session, lambda: gateways.now)
        shown, since = None, gateways.now + OLD_SECONDS
        for second in range(OLD_SECONDS + NEW_SECONDS):
            gateways.now += 1.0
            for address in ADDRESSES:
                windows = gateways.windows[address]
                for revision in ("s", "c") if second >= OLD_SECONDS else ("s",):
                    seconds = (0.1 + second % 10 / 100) * (factor if (revision, address) == ("c", slow) else 1.0)
                    outcome = Outcome(Group(*KEY, revision, "0-63"), End.ANSWERED, seconds, e2e=seconds, ttft=seconds)
                    windows.record_end(outcome, gateways.now)
            if second % 2:
                shown = await read.read(list(ADDRESSES), *KEY, judged=True)
        assert shown is not None
        return shown, since


def verdict_on(slices: tuple[Slice, ...], since: float, now: float) -> tuple[Verdict, int]:
    observation = Observation(*KEY, "uid", 1, {}, Status(), slices=slices)
    chosen = replace(GUARD, warmup_requests=0)
    judged = guard.assess(observation, chosen, Comparison("s", "c", since=since, now=now))
    assert judged is not None
    return judged, sources.count_requests(observation, chosen, "c", since, mirrored=False)


@pytest.mark.parametrize(("factor", "outcome"), [(1.0, Judged.PASSED), (8.0, Judged.REGRESSED)])
@pytest.mark.parametrize("skews", SKEWS)
async def test_gateways_with_other_clocks_are_judged_together(
    gateways: Gateways, skews: tuple[float, float], factor: float, outcome: Judged
) -> None:
    """Whichever gateway has the canary's slow half, the verdict and the canary's requests are those of right clocks."""
    for slow in ADDRESSES:
        for address, skew in zip(ADDRESSES, skews, strict=True):
            gateways.restart(address, skew)
        judged, requests = verdict_on(*await two_gateways_read(gateways, slow, factor), gateways.now)
        assert judged.outcome is outcome, judged.record.message
        # Of each gateway the open slice, and what lies beyond the skew that is accepted.
        missed = 2 * (2 + (MAX_SKEW_SECONDS + 1 if max(map(abs, skews)) <= MAX_SKEW_SECONDS else 2))
        assert 2 * NEW_SECONDS - missed <= requests <= 2 * NEW_SECONDS


async def test_neither_gateway_alone_shows_what_both_together_show(gateways: Gateways) -> None:
    """So that the verdict above is one of both: the slices of one gateway alone pass, or are too few."""
    for address, skew in zip(ADDRESSES, (30.0, -30.0), strict=True):
        gateways.restart(address, skew)
    slices, since = await two_gateways_read(gateways, ADDRESSES[0], 8.0)
    good = tuple(piece for piece in slices if piece.instance.startswith(ADDRESSES[1]))
    assert verdict_on(good, since, gateways.now)[0].outcome is Judged.PASSED
    assert len({piece.instance for piece in slices}) == 2
    starts = {piece.instance: max(one.start for one in slices if one.instance == piece.instance) for piece in slices}
    assert max(starts.values()) - min(starts.values()) <= 4.0, "both are in the operator's time"


async def test_what_was_measured_in_a_time_that_is_still_to_come_is_not_retained(gateways: Gateways) -> None:
    """When it comes, it would be taken for new."""
    one, _ = ADDRESSES
    ahead = 0.0
    async with aiohttp.ClientSession() as session:
        read = GatewayWindows(session, lambda: gateways.now + ahead)
        for jump in (0.0, -3600.0):
            ahead = jump
            for _ in range(10):
                gateways.now += 2.0
                gateways.windows[one].record_arrival(KEY, gateways.now)
                shown = await read.read([one], *KEY, judged=True)
        assert shown is not None and len(shown) >= 8
        assert max(piece.start for piece in shown) <= gateways.now + ahead


async def test_a_gateway_that_is_away_is_logged_once_a_minute_and_not_for_each_service(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    async with aiohttp.ClientSession() as session:
        windows = GatewayWindows(session, lambda: now)
        for second in range(0, 120, 5):
            now = float(second)
            for number in range(20):
                assert await windows.read(["127.99.9.9"], "default", f"service-{number}", judged=False) is None
    assert [record.getMessage() for record in caplog.records] == [
        "gateway 127.99.9.9: does not answer: ClientConnectorError"
    ] * 2
