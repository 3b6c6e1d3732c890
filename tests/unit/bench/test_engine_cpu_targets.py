"""Protects the verdicts of bench/engine_cpu.py: throughput that costs streams their rhythm misses a target, the comparison is with the
fastest of vLLM's settings, and answers are sampled unless the likeliest tokens are asked for."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))

from cpubench import client, workload
from cpubench.measures import Measured
from cpubench.report import ratios

RUN = Measured("", 64, 8290, 5035, 10.0, 500.0, 900.0, 1700.0, 40.0, 60.0, 2.0, 0.0, 1200.0, 0.0)
WELL = {
    "pagefleet": replace(RUN, tokens_per_s=600.0, itl_p95=80.0),
    "pagefleet-int8": replace(RUN, tokens_per_s=1600.0, itl_p95=60.0),
    "vllm": replace(RUN, tokens_per_s=350.0, itl_p95=85.0),
    "vllm-bf16": replace(RUN, tokens_per_s=530.0, itl_p95=60.0),
    "llama": replace(RUN, tokens_per_s=120.0, itl_p95=250.0),
    "transformers": replace(RUN, tokens_per_s=36.0, itl_p95=121.0),
}


def missed(runs: dict[str, Measured]) -> list[str]:
    return [ratio.name for ratio in ratios(runs) if ratio.missed]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("pagefleet", {"tokens_per_s": 500.0}),
        ("pagefleet", {"itl_p95": 86.0}),
        ("pagefleet-int8", {"tokens_per_s": 1500.0}),
        ("pagefleet-int8", {"itl_p95": 61.0}),
    ],
)
def test_slow_output_and_waits_between_tokens_each_miss_a_target(name: str, change: dict[str, float]) -> None:
    assert missed(WELL) == []
    (text,) = missed(WELL | {name: replace(WELL[name], **change)})
    assert ("p95 between tokens" in text) is ("itl_p95" in change)
    assert f"{name} /" in text


def test_a_peer_that_was_not_measured_has_no_verdict() -> None:
    ours = {name: run for name, run in WELL.items() if name.startswith("pagefleet")}
    assert [ratio.value for ratio in ratios(ours)] == [None] * 6


@pytest.mark.parametrize("answers", workload.Answers)
async def test_every_system_is_asked_to_sample_alike(answers: workload.Answers) -> None:
    """Systems have defaults of their own for what a request leaves out: llama.cpp cuts the tail of unlikely tokens off."""
    asked: list[dict[str, Any]] = []

    async def complete(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        reply = web.StreamResponse()
        await reply.prepare(request)
        usage = {"prompt_tokens": len(asked[-1]["prompt"]), "completion_tokens": asked[-1]["max_tokens"]}
        await reply.write(f"data: {json.dumps({'choices': [{'text': 'a'}], 'usage': usage})}\n\n".encode())
        return reply

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        requests = workload.make(range(5000), 3, 1, answers=answers)
        await client.drive(f"http://127.0.0.1:{runner.addresses[0][1]}", "m", requests, 10.0)
    finally:
        await runner.cleanup()
    sampling = [{name: body.get(name) for name in ("temperature", "top_k", "top_p", "min_p")} for body in asked]
    sampled = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    greedy = {"temperature": 0.0, "top_k": None, "top_p": None, "min_p": None}
    assert sampling == [sampled if answers is workload.Answers.SAMPLED else greedy] * 3
