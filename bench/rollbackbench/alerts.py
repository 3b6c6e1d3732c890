"""Rollbacks by alert: from POSTing it to the last request that the canary received, and the end of the open streams.

Several services roll a canary out and back, round after round, while the other InferenceServices just serve. Each canary
has half of the traffic and open streams when Alertmanager's payload is sent. The time begins when it is sent and ends when
the last request *arrived at* a pod of the canary: it holds the webhook, the write, the operator's decision, its write, the
gateway's watch and its pick. The streams outlast the canary's pods' order to stop.
"""

from __future__ import annotations

import asyncio
import datetime
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.rollbackbench.fleet import SERVICES, Fleet, fleet
from bench.rollbackbench.load import TOKENS_A_SECOND, Answers, Users, streams

RATE, CLOSE_RATE = 5.0, 50.0  # requests per second to each service that rolls out; while the last one is awaited
STREAMS, STREAM_SECONDS = 3, 8.0  # the canary's pods get SIGTERM after 5 s without weight
QUIET_SECONDS = 1.5  # after the rollback is in the status, the wait for a late canary request
CREATED_AT_ONCE = 16


@dataclass(frozen=True)
class Size:
    """`services` in all, `serving` of them with a pod, `lanes` of these roll out, together `rollbacks` times."""

    services: int
    serving: int
    lanes: int
    rollbacks: int


@dataclass(frozen=True)
class Rollback:
    """Seconds from sending the alert: to the answer 200, and to the last request that the canary got."""

    stored: float
    last: float


def spec(sequences: int) -> dict[str, Any]:
    return {
        "model": {"source": "file:///models/m", "servedName": "m"},
        "engine": {"args": [f"--max-num-seqs={sequences}"]},
        "resources": {"cpu": "10m", "memory": "16Mi"},
        "scaling": {"min": 1, "max": 1},
        "rollout": {
            "steps": [{"weight": 50, "hold": "1h"}],
            "guard": {},  # no gateway measures anything here
            "alerts": {"matchLabels": {"severity": "page"}, "onAlert": "rollback"},
        },
    }


def name(index: int) -> str:
    return f"s{index:03}"


async def measure(size: Size) -> Mapping[str, Any]:
    async with fleet(size.services) as running:
        began = time.monotonic()
        await _fill(running, size)
        filled, answers = time.monotonic() - began, Answers()
        lanes = [Lane(running, answers, index, size.rollbacks // size.lanes) for index in range(size.lanes)]
        rollbacks = [one for each in await asyncio.gather(*(lane.run() for lane in lanes)) for one in each]
        return {
            "services": size.services,
            "serving": size.serving,
            "readyAfter": round(filled, 1),
            "rollbacks": len(rollbacks),
            "ms": quantiles([one.last for one in rollbacks]),
            "storedMs": quantiles([one.stored for one in rollbacks]),
            "streams": sum(lane.streams for lane in lanes),
            "truncated": answers.truncated,
            "answered": answers.answered,
            "shed": answers.shed,
            "failed": answers.failed,
            "failures": dict(answers.failures),
        }


async def _fill(running: Fleet, size: Size) -> None:
    """All services, those that serve with one ready pod, the others at zero replicas, in external mode."""
    slots = asyncio.Semaphore(CREATED_AT_ONCE)

    async def one(index: int) -> None:
        async with slots:
            resting = {"scaling": {"min": 0, "max": 1, "mode": "external"}}
            await running.create(name(index), spec(1) | ({} if index < size.serving else resting))

    await asyncio.gather(*(one(index) for index in range(size.services)))
    async with asyncio.timeout(900):
        while True:
            items = (await running.api.get(SERVICES))["items"]
            ready = sum(settled(item.get("status") or {}) for item in items)
            print(f"  {ready} of {size.services} services are Ready", flush=True)
            if ready == size.services:
                return
            await asyncio.sleep(5)


class Lane:
    """One service's rollouts, one after another."""

    def __init__(self, running: Fleet, answers: Answers, index: int, rounds: int) -> None:
        self._running, self._answers, self._name, self._rounds = running, answers, name(index), rounds
        self._users = Users(running.http, f"{running.url}/{self._name}", answers, RATE)
        self._random = random.Random(index)
        self.streams = 0
        self.done: list[Rollback] = []

    async def run(self) -> list[Rollback]:
        load = asyncio.create_task(self._users.run())
        try:
            for number in range(2, self._rounds + 2):
                self.done.append(await self._round(number))
                if len(self.done) % 10 == 0:
                    worst = max(one.last for one in self.done)
                    print(
                        f"  {self._name}: {len(self.done)} of {self._rounds}, slowest {1e3 * worst:.0f} ms", flush=True
                    )
            return self.done
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
            await self._users.finished()

    async def _round(self, number: int) -> Rollback:
        running, users = self._running, self._users
        await running.api.merge(f"{SERVICES}/{self._name}", {"spec": spec(number)})
        started = await running.until(self._name, "a canary has weight", _has_weight)
        canary = started["canary"]
        try:
            await streams(users, canary, STREAMS, int(STREAM_SECONDS * TOKENS_A_SECOND))
        except TimeoutError as error:
            status, failures = await running.status(self._name), dict(self._answers.failures)
            raise RuntimeError(f"{self._name}: no stream was routed to {canary}: {failures}, {status}") from error
        self.streams += STREAMS
        users.rate = CLOSE_RATE
        await asyncio.sleep(self._random.uniform(0.5, 2.0))  # at any moment of the operator's two seconds
        sent = time.monotonic()
        await self._alert(canary)
        stored = time.monotonic() - sent
        await running.until(self._name, "rolled back", lambda status: status["rollout"]["phase"] == "RolledBack")
        await asyncio.sleep(QUIET_SECONDS)
        users.rate = RATE
        status = await running.status(self._name)
        if not any(one["hash"] == canary and one["reason"] == "Alert" for one in status.get("rejected", ())):
            raise RuntimeError(f"{self._name}: {canary} was not rejected for the alert: {status['rollout']}")
        return Rollback(stored, max(0.0, users.last[canary] - sent))

    async def _alert(self, canary: str) -> None:
        labels = {"alertname": "Bad", "severity": "page", "service": self._name, "revision": canary,
                  "namespace": self._running.url.rpartition("/")[2]}  # fmt: skip
        now = datetime.datetime.now(datetime.UTC).isoformat()
        entry = {"status": "firing", "labels": labels, "startsAt": now, "fingerprint": f"{self._name}-{canary}"}
        headers = {"Authorization": f"Bearer {self._running.token}"}
        payload = {"version": "4", "alerts": [entry]}
        async with self._running.http.post(self._running.alerts, json=payload, headers=headers) as response:
            if response.status != 200:
                raise RuntimeError(f"the webhook answered {response.status}: {await response.text()}")


def settled(status: Mapping[str, Any]) -> bool:
    """Whether the service is Ready, with or without pods."""
    return any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ()))


def _has_weight(status: Mapping[str, Any]) -> bool:
    canary = status.get("canary")
    return any(entry["revision"] == canary and entry["weight"] for entry in status.get("traffic", ()))


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Return quantiles in milliseconds, by nearest rank."""
    ordered = sorted(seconds)
    places = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {key: round(1e3 * ordered[min(len(ordered) - 1, int(len(ordered) * at))], 1) for key, at in places.items()}
