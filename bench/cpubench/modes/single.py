"""One stream: requests one after the other, and what llama-bench says of the same model."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import peers
from rich.console import Console
from rich.table import Table

from cpubench import report, runs
from cpubench.made import llama
from cpubench.measures import Answer
from cpubench.rounds import Rounds
from cpubench.servers import tail
from cpubench.shapes import Shape
from cpubench.systems import System, threads
from cpubench.targets import GENERATION
from cpubench.workload import Request

REQUESTS, PROMPT, OUTPUT = 8, 128, 128
PROMPTS = "llama-bench, prompt"
TIMEOUT = 900.0


@dataclass(frozen=True)
class Stream:
    """One system's median over the requests. tokens_per_s: of one answer after its first token; for PROMPTS of its prompt.
    ttft_p50 in milliseconds; ready_s and rss_mib are those of a server, 0 for llama-bench."""

    system: str
    tokens_per_s: float
    ttft_p50: float
    ready_s: float
    rss_mib: float
    others_cpu: float


def measure(rounds: Rounds, systems: Sequence[System], requests: Sequence[Request], shape: Shape) -> list[Stream]:
    """Measure and show the systems, and llama-bench where it is there; those that failed are missing."""
    steps = {system.name: rounds.least_disturbed(partial(_once, system, requests)) for system in systems}
    if llama.made(peers.llama_folder()) and peers.q4_0_file(shape).exists():
        steps["llama-bench"] = partial(_bench, rounds, shape)
    measured = rounds.every(steps)
    if measured:
        _show(rounds.console, list(report.medians(measured).values()), len(requests), rounds.count)
    return measured


def _once(system: System, requests: Sequence[Request], log: Path) -> Stream:
    """Start, rest, warm up, ask one after the other, end. Raises RuntimeError with the end of the system's log when it fails."""
    with runs.warmed(system, log) as (served, others):
        answers = runs.one_by_one(served, requests, log)
        process = served.measured()
        return Stream(
            system.name, statistics.median(map(decoded, answers)),
            statistics.median(1000 * (answer.times[0] - answer.sent) for answer in answers),
            process.ready_s, process.rss_mib, others.share(),
        )  # fmt: skip


def decoded(answer: Answer) -> float:
    """Tokens a second after the first one, which comes out of the prompt's step."""
    return (answer.output_tokens - 1) / (answer.times[-1] - answer.times[0])


def _bench(rounds: Rounds, shape: Shape, log: Path, _: int) -> list[Stream]:
    """llama.cpp's own program, which measures prompt and generation without a server. Raises RuntimeError when it fails."""
    line = [
        *llama.command(peers.llama_folder(), "llama-bench"), "-m", str(peers.q4_0_file(shape)), "-t", str(threads()),
        "-p", str(PROMPT), "-n", str(OUTPUT), "-fa", "0,1", "-o", "json",
    ]  # fmt: skip
    runs.await_quiet(rounds.quiet_timeout)
    with log.open("w") as errors:
        try:
            ended = subprocess.run(line, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=TIMEOUT, check=False)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(str(error)) from error
    if ended.returncode:
        raise RuntimeError(f"llama-bench ended with {ended.returncode}; its log ends:\n{tail(log)}")
    return parse(ended.stdout)


def parse(output: str) -> list[Stream]:
    """Read llama-bench's JSON: the best of its settings for each of the two numbers."""
    rows = json.loads(output)
    best = {
        PROMPTS: max((row["avg_ts"] for row in rows if not row["n_gen"]), default=0.0),
        GENERATION: max((row["avg_ts"] for row in rows if row["n_gen"]), default=0.0),
    }
    return [Stream(name, speed, 0.0, 0.0, 0.0, 0.0) for name, speed in best.items() if speed]


def _show(console: Console, middle: Sequence[Stream], requests: int, rounds: int) -> None:
    table = Table(
        title=f"{requests} requests one after the other, {PROMPT} prompt and {OUTPUT} output tokens; median of {rounds}"
    )
    table.add_column("system", no_wrap=True)
    for heading in ("tok/s", "TTFT p50 ms", "ready s", "RSS MiB", "others' CPU %"):
        table.add_column(heading, justify="right")
    for stream in middle:
        served = (
            f"{stream.ttft_p50:.0f}",
            f"{stream.ready_s:.1f}",
            f"{stream.rss_mib:.0f}",
            f"{stream.others_cpu:.0f}",
        )
        table.add_row(stream.system, f"{stream.tokens_per_s:.1f}", *(served if stream.ready_s else ("",) * 4))
    console.print(table)
