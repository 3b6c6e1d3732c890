"""Protects streams from the deaths of the engines behind them: real engines are killed in the middle of answers and asked
to end, behind a real Envoy. An answer ends whole, or its client is told; it is never begun twice; a drain fails nobody.
Row 22 of the reliability table. PAGEFLEET_ENGINE_KILLS and PAGEFLEET_ENGINE_DRAINS say how many (200 in the campaign).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.engine.api_process import make_model
from support.gateway.engine_pods import AT_ONCE, Client, EnginePod, Pods, clients, pods, truths
from support.gateway.fleet import Fleet, running, until

KILLS = int(os.environ.get("PAGEFLEET_ENGINE_KILLS", "2"))
DRAINS = int(os.environ.get("PAGEFLEET_ENGINE_DRAINS", "1"))
STREAMS = 3 * AT_ONCE  # at two engines: some of each wait for their first token
SHORTEST, LONGEST = 300, 1200  # tokens of an answer
MAX_LAG = 1.0  # seconds until the gateway hears that a pod is asked to end


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("deaths") / "model")


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with running() as fleet:
        yield fleet


def begin(fleet: Fleet, asked: Sequence[Client]) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(client.ask(fleet)) for client in asked]


def under_way(asked: Sequence[Client]) -> int:
    """Streams that have begun, and have more to come than is told within a moment."""
    return sum(0 < len(client.text) < len(client.truth) - 100 for client in asked)


def busiest(fleet: Fleet, engines: Pods) -> EnginePod:
    return max(engines.serving, key=lambda engine: fleet.gateway.ledger.in_flight(engine.pod))


async def test_an_engine_that_is_killed_cuts_no_stream_silently_and_begins_none_twice(
    fleet: Fleet, model: str, tmp_path: Path
) -> None:
    chance, ended = random.Random(22), Counter[str]()
    async with pods(fleet, model, tmp_path) as engines:
        truth = await truths(engines.serving[0], fleet, LONGEST, STREAMS)
        for number in range(KILLS):
            if number + 1 < KILLS:
                engines.prepare()
            asked = clients(truth, SHORTEST, STREAMS, chance)
            tasks = begin(fleet, asked)
            await until(lambda asked=asked: under_way(asked) > AT_ONCE)  # which no engine has alone
            victim = busiest(fleet, engines)
            os.kill(victim.process.pid if number % 2 else victim.engine_pid, signal.SIGKILL)
            await asyncio.gather(*tasks)
            assert [client for client in asked if not client.whole and not client.cut] == []
            ended.update("whole" if client.whole else client.error for client in asked)
            await victim.ended()
            engines.leave(victim)
            if number + 1 < KILLS:
                await engines.join()
    assert ended.total() == KILLS * STREAMS
    assert ended["engine_died"] + ended["ClientPayloadError"] >= KILLS, "nothing was cut: the kills came too late"
    await until(lambda: len(fleet.lines) == ended.total())
    again = sum(int(str(line["attempts"])) > 1 for line in fleet.lines)
    assert again >= KILLS // 2, "nobody waited for a first token: no retry was tried"
    assert set(ended) <= {"whole", "engine_died", "ClientPayloadError"}, ended


async def test_an_engine_that_is_asked_to_end_fails_no_request(fleet: Fleet, model: str, tmp_path: Path) -> None:
    chance, late = random.Random(22), 0
    async with pods(fleet, model, tmp_path) as engines:
        truth = await truths(engines.serving[0], fleet, LONGEST, STREAMS)
        for number in range(DRAINS):
            if number + 1 < DRAINS:
                engines.prepare()
            asked = clients(truth, SHORTEST, STREAMS, chance)
            tasks = begin(fleet, asked)
            await until(lambda asked=asked: under_way(asked) > AT_ONCE)  # which no engine has alone
            victim = busiest(fleet, engines)
            victim.process.send_signal(signal.SIGTERM)
            told = asyncio.create_task(_told(fleet, victim, chance.uniform(0.0, MAX_LAG)))
            while victim.process.returncode is None:  # and others come all the time
                more = clients({prompt: text[:40] for prompt, text in truth.items()}, 1, 2, chance)
                asked += more
                late += len(more)
                await asyncio.gather(*begin(fleet, more))
            await asyncio.gather(*tasks, told)
            assert [client for client in asked if not client.whole] == []
            assert await victim.ended() == 0
            engines.leave(victim)
            if number + 1 < DRAINS:
                await engines.join()
    assert late >= DRAINS


async def _told(fleet: Fleet, victim: EnginePod, after: float) -> None:
    """The gateway sees the pod's deletion a moment after the kubelet has acted on it."""
    await asyncio.sleep(after)
    fleet.state.put_pod(replace(victim.pod, ready=False))
