"""Measures the engine's features, each beside a run with the feature switched off: KV waste, prefix caching,
chunked prefill, speculation, and the family of the model beside transformers' own code. In process, on the CPU, with SmolLM2-135M-Instruct in int8.

Claims (`--check`): less than 4 % of the KV slots held are waste on mixed lengths (PagedAttention's claim: Kwon et al.,
SOSP 2023); a shared document is computed once; a long prompt does not stop running streams; prompt lookup is faster
where the answer repeats its prompt, and never slower by more than a tenth where it does not; a model without a family of
the engine's, computed by transformers' code, has at least a third of the speed.
"""

from __future__ import annotations

import json as json_
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from cpubench import float_model, workload
from rich.console import Console
from rich.table import Table

from pagefleet_engine.core.requests import EngineConfig, EngineRequest, SamplingParams, Speculation
from pagefleet_engine.model.checkpoint.source import resolve
from pagefleet_engine.model.text import tokenizer
from pagefleet_engine.runner.cpu.engine import Engine

TEXT = Path(__file__).parent / "cpubench/text.txt"
CONFIG = EngineConfig(model=float_model.URI, quantization="int8", max_model_len=8192, num_pages=2048)


@dataclass(frozen=True)
class Claim:
    """One measured number beside what it is compared with; `holds` is the claim's own test."""

    name: str
    value: float
    unit: str
    beside: str
    holds: bool


@dataclass
class Course:
    """The course of the requests of one run, in seconds from its begin."""

    seconds: float
    first: dict[str, float]
    gaps: dict[str, list[float]]
    waste: list[float]
    tokens: int


def run(engine: Engine, arrivals: list[tuple[float, EngineRequest]]) -> Course:
    """Serve requests that arrive at their times; each step's outputs are stamped when it ends."""
    waiting = sorted(arrivals, key=lambda pair: pair[0])
    begin = time.perf_counter()
    last: dict[str, float] = {}
    course = Course(0.0, {}, {}, [], 0)
    while waiting or engine.has_work():
        now = time.perf_counter() - begin
        while waiting and waiting[0][0] <= now:
            engine.add(waiting.pop(0)[1])
        outputs = engine.step(now)
        now = time.perf_counter() - begin
        stats = engine.stats()
        if stats.slots_held:
            course.waste.append(1 - stats.slots_used / stats.slots_held)
        for output in outputs:
            course.tokens += len(output.token_ids)
            if output.request_id in last:
                gaps = course.gaps.setdefault(output.request_id, [])
                gaps += [(now - last[output.request_id]) / len(output.token_ids)] * len(output.token_ids)
            else:
                course.first[output.request_id] = now
            last[output.request_id] = now
    course.seconds = time.perf_counter() - begin
    return course


def request(name: str, prompt: list[int], most: int) -> EngineRequest:
    return EngineRequest(name, tuple(prompt), SamplingParams(most, ignore_eos=True), 0.0)


def waste(text: list[int], scale: float) -> list[Claim]:
    """Slots held but not filled, over the steps of the mixed workload; beside it what fixed reservations waste."""
    mixed = workload.make(text, max(8, int(64 * scale)), 1)
    course = run(
        Engine(replace(CONFIG, max_model_len=1024)),
        [(0.0, request(str(index), one.prompt, one.output)) for index, one in enumerate(mixed)],
    )
    ours = statistics.mean(course.waste)
    totals = [len(one.prompt) + one.output for one in mixed]
    # What is filled on average over an answer's life: the prompt and half of the answer.
    filled = statistics.mean(len(one.prompt) + one.output / 2 for one in mixed)
    whole, longest = 1 - filled / 1024, 1 - filled / max(totals)
    beside = f"{whole:.0%} with 1,024 slots reserved for each, {longest:.0%} in a static batch of the longest"
    return [Claim("KV slots wasted", 100 * ours, "%", beside, ours < 0.04)]


def prefix(text: list[int], scale: float) -> list[Claim]:
    """Users who ask about one document: the time until all have their first token, with and without the cache."""
    users, document = max(10, int(100 * scale)), (text * 3)[:1500]
    asked = [(0.0, request(str(user), document + text[user * 7 : user * 7 + 12], 1)) for user in range(users)]
    courses = {on: run(Engine(replace(CONFIG, prefix_caching=on)), asked) for on in (True, False)}
    firsts = {on: statistics.median(course.first.values()) for on, course in courses.items()}
    factor = firsts[False] / firsts[True]
    beside = f"median TTFT of {users} users {firsts[True] * 1e3:.0f} ms, without it {firsts[False] * 1e3:.0f} ms"
    return [Claim("prefix caching: TTFT", factor, "x less", beside, factor > 5)]


def chunks(text: list[int], scale: float) -> list[Claim]:
    """Eight streams run when a long prompt comes: their longest gap, in chunks and at once."""
    long = (text * 8)[: int(4096 * max(scale, 0.5))]
    streams = [(0.0, request(str(index), text[index * 40 : index * 40 + 60], 120)) for index in range(8)]
    longest: dict[int, float] = {}
    for budget, chunk in ((256, 128), (8192, 8192)):
        engine = Engine(replace(CONFIG, max_num_batched_tokens=budget, max_chunk_tokens=chunk))
        course = run(engine, [*streams, (0.4, request("long", long, 2))])
        longest[budget] = max(max(course.gaps[str(index)]) for index in range(8))
    factor = longest[8192] / longest[256]
    beside = (
        f"longest gap of 8 streams while {len(long)} tokens arrive: {longest[256] * 1e3:.0f} ms in chunks of 128, "
        f"{longest[8192] * 1e3:.0f} ms at once"
    )
    return [Claim("chunked prefill: longest gap", factor, "x shorter", beside, factor > 3)]


def speculation(text: list[int], scale: float) -> list[Claim]:
    """Prompt lookup on and off: one stream that repeats its prompt, and a full batch of unlike ones."""
    repeating = (text[:60] * 4)[:220]
    cases: list[tuple[str, list[EngineRequest], Callable[[float], bool]]] = [
        ("one stream, repetitive", [request("0", repeating, int(160 * max(scale, 0.5)))], lambda factor: factor > 1.2),
        (
            "32 streams",
            [request(str(index), text[index * 30 : index * 30 + 50], int(64 * max(scale, 0.5))) for index in range(32)],
            lambda factor: factor > 0.9,
        ),
    ]
    claims = []
    for name, requests, holds in cases:
        speeds: dict[bool, list[float]] = {True: [], False: []}
        engines = {
            on: Engine(replace(CONFIG, prefix_caching=False, speculation=Speculation("ngram", 5) if on else None))
            for on in speeds
        }
        for _ in range(3):
            for on, engine in engines.items():
                course = run(engine, [(0.0, one) for one in requests])
                speeds[on].append(course.tokens / course.seconds)
        factor = statistics.median(speeds[True]) / statistics.median(speeds[False])
        stats = engines[True].stats()
        share = stats.accepted_tokens / max(1, stats.draft_tokens)
        beside = (
            f"{statistics.median(speeds[True]):.0f} tok/s with drafts ({share:.0%} of {stats.draft_tokens} accepted), "
            f"{statistics.median(speeds[False]):.0f} without"
        )
        claims.append(Claim(f"prompt lookup: {name}", factor, "x as fast", beside, holds(factor)))
    return claims


def backend(text: list[int], scale: float) -> list[Claim]:
    """The model as float32 safetensors, computed by its family and by transformers' code: many requests, and one stream."""
    mixed = workload.make(text, max(8, int(24 * scale)), 1)
    cases = {
        "mixed requests": [request(str(index), one.prompt, one.output) for index, one in enumerate(mixed)],
        "one stream": [request("one", text[:100], int(96 * max(scale, 0.5)))],
    }
    speeds: dict[tuple[str, str], float] = {}
    with tempfile.TemporaryDirectory() as folder:
        float_model.write(Path(folder))
        for impl in ("pagefleet", "transformers"):
            engine = Engine(replace(CONFIG, model=f"file://{folder}", model_impl=impl, quantization="none"))
            for name, requests in cases.items():
                course = run(engine, [(0.0, one) for one in requests])
                speeds[impl, name] = course.tokens / course.seconds
    claims = []
    for name in cases:
        ours, theirs = speeds["pagefleet", name], speeds["transformers", name]
        beside = f"{theirs:.0f} tok/s through transformers' code, {ours:.0f} through the family, float32"
        claims.append(Claim(f"transformers backend: {name}", theirs / ours, "of the speed", beside, theirs > ours / 3))
    return claims


SCENARIOS = {"waste": waste, "prefix": prefix, "chunks": chunks, "speculation": speculation, "backend": backend}


def main(
    quick: Annotated[bool, typer.Option("--quick", help="smaller workloads, about a minute")] = False,
    only: Annotated[str | None, typer.Option(help=f"one of {', '.join(SCENARIOS)}")] = None,
    check: Annotated[bool, typer.Option("--check", help="end with 1 when a claim does not hold")] = False,
    json: Annotated[Path | None, typer.Option(help="write the numbers to this file")] = None,
) -> None:
    """Measure what each feature of the engine is worth on this machine."""
    if only is not None and only not in SCENARIOS:
        raise typer.BadParameter(f"--only is one of {', '.join(SCENARIOS)}, not {only}")
    console = Console()
    text = tokenizer.load(resolve(float_model.URI)).encode(TEXT.read_text(), add_special_tokens=False)
    claims: list[Claim] = []
    for name, scenario in SCENARIOS.items():
        if only in (None, name):
            console.print(f"{name} ...", style="dim")
            claims += scenario(text, 0.25 if quick else 1.0)
    table = Table("claim", "measured", "how", "holds")
    for claim in claims:
        table.add_row(claim.name, f"{claim.value:.2f} {claim.unit}", claim.beside, "yes" if claim.holds else "NO")
    console.print(table)
    if json:
        json.write_text(json_.dumps([claim.__dict__ for claim in claims], indent=1) + "\n")
    if check and not all(claim.holds for claim in claims):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
