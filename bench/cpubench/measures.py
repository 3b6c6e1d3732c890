"""Summaries of one run. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """One request's answer: when it was sent, when each piece of it came (seconds from the start), and its tokens."""

    sent: float
    times: tuple[float, ...]
    prompt_tokens: int
    output_tokens: int
    text: str = ""


@dataclass(frozen=True)
class Process:
    """A system's process tree: start to ready, idle CPU (100 is one core busy), most resident memory in MiB."""

    ready_s: float
    idle_cpu: float
    rss_mib: float


@dataclass(frozen=True)
class Measured:
    """One run of one system. TTFT and ITL in milliseconds.

    `others_cpu`: what the rest of the machine used meanwhile (100 is one core busy); a run it is high in says little.
    """

    system: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    makespan_s: float
    tokens_per_s: float
    ttft_p50: float
    ttft_p95: float
    itl_p50: float
    itl_p95: float
    ready_s: float
    idle_cpu: float
    rss_mib: float
    others_cpu: float


def makespan(answers: Sequence[Answer]) -> float:
    """Seconds from the first request to the last piece of an answer."""
    return max(answer.times[-1] for answer in answers) - min(answer.sent for answer in answers)


def summarise(system: str, answers: Sequence[Answer], process: Process, others_cpu: float) -> Measured:
    seconds = makespan(answers)
    tokens = sum(answer.output_tokens for answer in answers)
    first = [1000 * (answer.times[0] - answer.sent) for answer in answers]
    gaps = [1000 * (b - a) for answer in answers for a, b in zip(answer.times, answer.times[1:], strict=False)]
    return Measured(
        system=system,
        requests=len(answers),
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        output_tokens=tokens,
        makespan_s=seconds,
        tokens_per_s=tokens / seconds,
        ttft_p50=percentile(first, 50),
        ttft_p95=percentile(first, 95),
        itl_p50=percentile(gaps, 50),
        itl_p95=percentile(gaps, 95),
        ready_s=process.ready_s,
        idle_cpu=process.idle_cpu,
        rss_mib=process.rss_mib,
        others_cpu=others_cpu,
    )


def percentile(values: Iterable[float], percent: int) -> float:
    ordered = sorted(values)
    return statistics.quantiles(ordered, n=100, method="inclusive")[percent - 1] if len(ordered) > 1 else ordered[0]
