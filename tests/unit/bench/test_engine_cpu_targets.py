"""Protects the verdicts of bench/engine_cpu.py: throughput that costs streams their rhythm misses a target, the comparison is with the
fastest of vLLM's and of llama.cpp's settings, and answers are sampled unless the likeliest tokens are asked for."""

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
from cpubench.modes import single
from cpubench.modes.single import Stream
from cpubench.shapes import Shape
from cpubench.targets import AT_ONCE, SINGLE, ratios

RUN = Measured("", 64, 8290, 5035, 10.0, 500.0, 900.0, 1700.0, 40.0, 60.0, 2.0, 0.0, 1200.0, 0.0)
WELL = {
    "pagefleet": replace(RUN, tokens_per_s=600.0, itl_p95=80.0),
    "pagefleet-int8": replace(RUN, tokens_per_s=1600.0, itl_p95=60.0),
    "pagefleet-int8-nospec": replace(RUN, tokens_per_s=1500.0, itl_p95=55.0),
    "pagefleet-default": replace(RUN, rss_mib=1400.0),
    "vllm": replace(RUN, tokens_per_s=350.0, itl_p95=85.0),
    "vllm-bf16": replace(RUN, tokens_per_s=530.0, itl_p95=60.0),
    "vllm-w8a8": replace(RUN, tokens_per_s=600.0, itl_p95=60.0),
    "llama-q4_0": replace(RUN, tokens_per_s=120.0, itl_p95=250.0),
    "transformers": replace(RUN, tokens_per_s=36.0, itl_p95=121.0),
}


def missed(runs: dict[str, Measured]) -> list[str]:
    return [ratio.name for ratio in ratios(runs, AT_ONCE[Shape.SMOLLM2]) if ratio.missed]


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("pagefleet", {"tokens_per_s": 500.0}, "tokens/s, pagefleet /"),
        ("pagefleet", {"itl_p95": 86.0}, "p95 between tokens, pagefleet /"),
        ("pagefleet-int8", {"tokens_per_s": 1300.0}, "tokens/s, pagefleet-int8 /"),
        ("pagefleet-int8-nospec", {"tokens_per_s": 1300.0}, "tokens/s, pagefleet-int8-nospec /"),
        ("pagefleet-int8", {"itl_p95": 61.0}, "p95 between tokens, pagefleet-int8 /"),
        ("pagefleet-int8", {"ready_s": 5.1}, "until pagefleet-int8 is ready"),
        ("pagefleet-default", {"rss_mib": 1440.0}, "MiB of pagefleet-default"),
        ("llama-q4_0", {"tokens_per_s": 1601.0}, "llama.cpp's server"),
    ],
)
def test_slow_output_waits_a_slow_start_and_memory_each_miss_a_target(
    name: str, change: dict[str, float], what: str
) -> None:
    assert missed(WELL) == []
    (text,) = missed(WELL | {name: replace(WELL[name], **change)})
    assert what in text


def test_a_peer_that_was_not_measured_has_no_verdict() -> None:
    ours = {name: run for name, run in WELL.items() if name.startswith("pagefleet")}
    for target, ratio in zip(AT_ONCE[Shape.SMOLLM2], ratios(ours, AT_ONCE[Shape.SMOLLM2]), strict=True):
        assert ratio.value is None or not set(target.theirs) - set(ours)


def test_a_ratio_without_a_limit_is_no_miss() -> None:
    slower = WELL | {"pagefleet-nospec": replace(RUN, tokens_per_s=2000.0)}
    (lookup,) = [ratio for ratio in ratios(slower, AT_ONCE[Shape.SMOLLM2]) if ratio.name.endswith("without int8")]
    assert lookup.value == pytest.approx(0.3)
    assert not lookup.missed


@pytest.mark.parametrize(("generation", "met"), [(190.0, True), (210.0, False)])
def test_one_stream_is_held_against_the_best_of_llama_bench_and_the_server(generation: float, met: bool) -> None:
    """llama-bench's rows as it prints them: a prompt and a generation for each of its settings."""
    rows = [
        {"n_prompt": 128, "n_gen": 0, "avg_ts": 900.0}, {"n_prompt": 0, "n_gen": 128, "avg_ts": 150.0},
        {"n_prompt": 128, "n_gen": 0, "avg_ts": 1200.0}, {"n_prompt": 0, "n_gen": 128, "avg_ts": generation},
    ]  # fmt: skip
    measured = [
        Stream("pagefleet-int8-nospec", 240.0, 50.0, 2.0, 900.0, 0.0),
        Stream("pagefleet-int8", 250.0, 50.0, 2.0, 900.0, 0.0),
        Stream("llama-q4_0", 160.0, 100.0, 1.0, 300.0, 0.0),
        *single.parse(json.dumps(rows)),
    ]
    assert measured[-2].tokens_per_s == 1200.0
    without, _ = ratios({stream.system: stream for stream in measured}, SINGLE)
    assert without.value == pytest.approx(240.0 / generation)
    assert without.missed is not met


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
