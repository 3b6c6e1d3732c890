"""Protects the guard that listens to Prometheus, with a real one: what it scrapes of our engine's own /metrics by the
shipped labels convicts a slower canary and no equal one, a restarted engine is a gap and not evidence, a pod that is not
scraped keeps everything inconclusive, and so does a Prometheus that has died."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest_asyncio
import yaml
from support.engine.measured import MeasuredEngine

from pagefleet_local.assets import debian
from pagefleet_local.fleet.kubectl import until
from pagefleet_operator.domain.analysis import guard
from pagefleet_operator.domain.analysis.guard import Comparison
from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict
from pagefleet_operator.domain.spec.rollout import Guard, LatencyGuard
from pagefleet_operator.domain.spec.schema.guard_signals import Source
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.status import Status
from pagefleet_operator.metrics.cumulative import Pod
from pagefleet_operator.metrics.measuring import of_prometheus
from pagefleet_operator.metrics.prometheus_client import Prometheus
from pagefleet_operator.metrics.prometheus_windows import PrometheusWindows

GUARD = Guard(
    (LatencyGuard("ttft", 0.95, 0.15, 0.99, 100, "Prometheus"),), 0.05, 5, "hold", 60.0, error_source=Source.PROMETHEUS
)
PODS = (Pod("chat-aaaa-1", "", "aaaa"), Pod("chat-cccc-1", "", "cccc"), Pod("chat-dddd-1", "", "dddd"))
(WANTED,) = of_prometheus(GUARD, "team-a", "chat")


class Scene:
    """A Prometheus that scrapes three engines every two seconds: the stable's, an equal canary's and one three times slower."""

    def __init__(self, engines: list[MeasuredEngine], process: asyncio.subprocess.Process, client: Prometheus) -> None:
        self.engines, self.process = engines, process
        self.windows = PrometheusWindows(client, interval=0.5)

    async def judged(self, canary: str, pods: tuple[Pod, ...] = PODS) -> Verdict:
        ours = [pod for pod in pods if pod.revision in ("aaaa", canary)]
        slices = await self.windows.read(ours, ("aaaa", canary), WANTED)
        silence = {"prometheus": self.windows.silence(WANTED)}
        observation = Observation("team-a", "chat", "uid", 1, {}, Status(), silence=silence,
                           prometheus={} if slices is None else {"": slices})  # fmt: skip
        judgement = guard.assess(observation, GUARD, Comparison("aaaa", canary, since=0.0, now=time.time()))
        assert judgement is not None
        return judgement


def config(ports: list[int]) -> dict[str, Any]:
    """Return scrape targets with the labels that the shipped scrape jobs give them."""
    targets = [
        {"targets": [f"127.0.0.1:{port}"],
         "labels": {"namespace": "team-a", "service": "chat", "revision": pod.revision, "pod": pod.name}}
        for port, pod in zip(ports, PODS, strict=True)
    ]  # fmt: skip
    return {"scrape_configs": [{"job_name": "pagefleet-engine", "scrape_interval": "2s", "static_configs": targets}]}


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    engines = [MeasuredEngine(seed, factor) for seed, factor in enumerate((1.0, 1.0, 3.0))]
    ports = [await engine.serve("127.0.0.1") for engine in engines]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config(ports)))
    log = (tmp_path / "log").open("wb")
    process = await asyncio.create_subprocess_exec(
        debian.tool("prometheus"), "--config.file=prometheus.yaml", f"--web.listen-address={address}",
        "--storage.tsdb.path=data", cwd=tmp_path, stdout=log, stderr=log,
    )  # fmt: skip
    async with aiohttp.ClientSession() as session:
        yield Scene(engines, process, Prometheus(session, f"http://{address}"))
    if process.returncode is None:
        process.kill()
    await process.wait()
    log.close()
    for engine in engines:
        await engine.close()


async def test_the_guard_judges_what_prometheus_has_scraped(scene: Scene) -> None:
    verdicts: dict[str, Verdict] = {}

    async def regressed() -> bool:
        verdicts["slow"] = await scene.judged("dddd")
        return verdicts["slow"].outcome is Outcome.REGRESSED

    async def passed() -> bool:
        verdicts["equal"] = await scene.judged("cccc")
        assert verdicts["equal"].outcome is not Outcome.REGRESSED, verdicts["equal"].record.message
        return verdicts["equal"].outcome is Outcome.PASSED

    await until(regressed, timeout=90, what="the slower canary is convicted")
    assert verdicts["slow"].record.message.endswith("; source Prometheus")
    await until(passed, timeout=90, what="the equal canary passes")
    slices = await scene.windows.read([PODS[0], PODS[1]], ("aaaa", "cccc"), WANTED)
    assert slices is not None
    for engine, pod in zip(scene.engines, PODS, strict=False):
        between = {late - early for number, early in enumerate(engine.pages) for late in engine.pages[number + 1 :]}
        assert {piece.requests for piece in slices if piece.instance.endswith(pod.name)} <= between, (
            "each scrape is counted as it was, nothing is extrapolated"
        )

    before = len(scene.engines[1].pages)
    scene.engines[1].restart()
    scene.engines[1].metrics.ttft.observe(30.0, 20)  # what a cold start makes slow is in its first scrape

    async def rescraped() -> bool:
        verdicts["restarted"] = await scene.judged("cccc")
        return len(scene.engines[1].pages) >= before + 4

    await until(rescraped, timeout=30, what="the restarted engine is scraped")
    assert verdicts["restarted"].outcome is not Outcome.REGRESSED, verdicts["restarted"].record.message

    stranger = Pod("chat-cccc-2", "", "cccc")

    async def missed() -> bool:
        verdicts["unseen"] = await scene.judged("cccc", (*PODS, stranger))
        return "chat-cccc-2" in verdicts["unseen"].record.message

    await until(missed, timeout=30, what="a pod that nobody scrapes is missed")
    assert verdicts["unseen"].outcome is Outcome.INCONCLUSIVE

    scene.process.kill()
    await scene.process.wait()

    async def dead() -> bool:
        verdicts["dead"] = await scene.judged("dddd")
        return "does not answer" in verdicts["dead"].record.message

    await until(dead, timeout=30, what="Prometheus is known to be dead")
    assert verdicts["dead"].outcome is Outcome.INCONCLUSIVE
