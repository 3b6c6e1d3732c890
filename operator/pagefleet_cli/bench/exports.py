"""Writes a run as the reports of other tools: guidellm's JSON report, and inference-perf's lifecycle reports.

Both formats have figures that this command does not measure. They are null there, or -1 where guidellm allows no null, and the writers
return their names.
"""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pagefleet_cli.base.errors import CommandError
from pagefleet_cli.bench.profile import Lengths, Spread, stage_of
from pagefleet_cli.bench.requests import Sample
from pagefleet_cli.bench.result import errors, quantile, series
from pagefleet_cli.bench.statistics import concurrency, distribution, rates
from pagefleet_cli.bench.store import SavedRun

PERCENTILES = (0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
MEDIA = {
    "image": ("count", "pixels", "bytes", "aspect_ratio"),
    "video": ("count", "frames", "pixels", "bytes", "aspect_ratio"),
    "audio": ("count", "seconds", "bytes"),
}
UNMEASURED = (
    "inter_token_latency (gaps between single tokens)", "request_size_bytes", "prompt_tokens.cached", "token_count_mismatches",
    *MEDIA,
)  # fmt: skip
UNMEASURED_GUIDELLM = (
    "texts of prompts and answers", "times inside its scheduler", "iterations and round trips of streams", "reasoning tokens", *MEDIA, "tool_call",
)  # fmt: skip
DELAYS = ("queued_time", "resolve_start_delay", "resolve_targeted_start_delay", "request_start_delay", "resolve_end_delay",
          "resolve_time", "finalized_delay", "processed_delay")  # fmt: skip


def inference_perf(folder: Path, saved: SavedRun) -> tuple[str, ...]:
    """Write the summary and one report for each stage; without stages the whole run is stage 0. Raises CommandError."""
    samples = saved.run.samples
    documents = {"summary": lifecycle(samples, None)}
    for index in range(max(1, len(saved.profile.stages))):
        own = [one for one in samples if stage_of(saved.profile, one.at) == index]
        rate = saved.profile.stages[index].rate if saved.profile.stages else saved.profile.rate
        documents[f"stage_{index}"] = lifecycle(own, rate)
    for name, document in documents.items():
        _write("--inference-perf-report", folder / f"{name}_lifecycle_metrics.json", document)
    return UNMEASURED


def lifecycle(samples: Sequence[Sample], rate: float | None) -> dict[str, Any]:
    """`rate`: planned requests per second of a stage, None for a whole run. Latencies begin at the intended start; seconds."""
    good, bad = [one for one in samples if not one.error], [one for one in samples if one.error]
    began = min((one.at for one in samples), default=0.0)
    seconds = max((one.at + one.e2e for one in samples), default=0.0) - began
    sent = [one.at + one.late for one in samples]
    sending = max(sent, default=0.0) - min(sent, default=0.0)
    load: dict[str, Any] = {"count": len(samples), "schedule_delay": _shares([one.late for one in samples])}
    if rate is not None:
        achieved = len(samples) / sending if sending > 0 else 0.0
        load |= {"send_duration": sending, "requested_rate": rate, "achieved_rate": achieved}
    speed = {
        name: sum(map(count, good)) / seconds if seconds > 0 else 0.0
        for name, count in {
            "input_tokens_per_sec": lambda one: one.prompt_tokens, "output_tokens_per_sec": lambda one: one.output_tokens,
            "total_tokens_per_sec": lambda one: one.prompt_tokens + one.output_tokens, "requests_per_sec": lambda one: 1,
        }.items()
    }  # fmt: skip
    answers = [float(one.output_tokens) for one in good]
    latency = {
        "request_latency": _shares(series(good, "e2e")),
        "normalized_time_per_output_token": _shares([one.e2e / one.output_tokens for one in good if one.output_tokens]),
        "time_per_output_token": _shares(series(good, "tpot")),
        "time_to_first_token": _shares(series(good, "ttft")),
        "inter_token_latency": None,
    }
    return {
        "benchmark_time_seconds": seconds,
        "load_summary": load,
        "successes": {
            "count": len(good), "latency": latency, "throughput": speed | {f"{name}s_per_sec": None for name in MEDIA}, "request_size_bytes": None, **{name: dict.fromkeys(parts) for name, parts in MEDIA.items()},
            "prompt_tokens": _tokens([one.prompt_tokens for one in good]) | {"cached": None, "uncached": None},
            "output_len": _shares(answers), "output_tokens": _tokens(answers), "token_count_mismatches": None,
        },
        "failures": {
            "count": len(bad), "request_latency": _shares([one.e2e for one in bad]),
            "prompt_tokens": _tokens([one.prompt_tokens for one in bad]) | {"cached": None, "uncached": None},
            "by_label": {kind: {"count": count, "messages": []} for kind, count in errors(bad).items()},
        },
    }  # fmt: skip


def _tokens(counts: Sequence[float]) -> dict[str, Any]:
    return {"total": float(sum(counts)), **(_shares(counts) or {})}


def _shares(numbers: Sequence[float]) -> dict[str, float | None] | None:
    """Mean, limits and percentiles (nearest rank); None of nothing."""
    if not numbers:
        return None
    ordered = sorted(numbers)
    named = {"median" if p == 50 else f"p{p:g}": quantile(ordered, p / 100) for p in PERCENTILES}
    return {"mean": sum(ordered) / len(ordered), "min": ordered[0], "max": ordered[-1], **named}


def guidellm(file: Path, saved: SavedRun) -> tuple[str, ...]:
    """Write one benchmark in version 2 of guidellm's report. Raises CommandError."""
    begun = datetime.datetime.fromisoformat(saved.time).timestamp()
    good, bad = [one for one in saved.run.samples if not one.error], [one for one in saved.run.samples if one.error]
    rate, load = saved.profile.rate, saved.profile
    data = {
        "kind": "synthetic_text",
        **_lengths("prompt", load.prompt_tokens),
        **_lengths("output", load.output_tokens),
    }
    backend = {"kind": "openai_http", "target": saved.url, "model": saved.model}
    profile = {"kind": "poisson", "rate": [rate]}
    limits = [{"kind": "max_requests", "count": load.requests}]
    spec = {"backend": backend, "profile": profile, "constraints": limits, "data": [data],
            "seed": {"kind": "static", "value": load.seed}}  # fmt: skip
    end = begun + saved.run.seconds
    counts = {"successful": len(good), "errored": len(bad), "incomplete": 0, "total": len(good) + len(bad)}
    late, took = _mean([one.late for one in saved.run.samples]), _mean([one.e2e - one.late for one in good])
    scheduler = {
        "start_time": begun, "request_start_time": begun, "measure_start_time": begun, "measure_end_time": end,
        "request_end_time": end, "end_time": end, "requests_made": counts, "request_time_avg": took,
        "request_targeted_start_delay_avg": late, **{f"{name}_avg": -1.0 for name in DELAYS},
    }  # fmt: skip
    benchmark = {
        "type_": "generative_benchmark",
        "config": {
            "run_id": saved.time, "run_index": 0, "profile": profile, "requests": {}, "backend": backend, "environment": {},
            "strategy": {"type_": "poisson", "rate": rate, "random_seed": load.seed},
            "constraints": {"max_requests": {"count": load.requests}},
        },
        "scheduler_state": {
            "node_id": 0, "num_processes": 1, "start_time": begun, "end_time": end, "created_requests": len(saved.run.samples),
            "processed_requests": len(saved.run.samples), "successful_requests": len(good), "errored_requests": len(bad),
        },
        "scheduler_metrics": scheduler,
        "metrics": {"request_totals": counts, **_metrics(good, bad, saved.run.seconds)},
        "requests": {
            "successful": [_request(one, begun, number, "completed") for number, one in enumerate(good)],
            "errored": [_request(one, begun, number, "errored") for number, one in enumerate(bad)],
            "incomplete": [], "total": None,
        },
        "start_time": begun, "end_time": end, "duration": saved.run.seconds, "warmup_duration": 0.0, "cooldown_duration": 0.0,
    }  # fmt: skip
    metadata = {
        "version": 2, "guidellm_version": "pagefleet", "python_version": platform.python_version(),
        "platform": platform.platform(),
    }  # fmt: skip
    document = {"metadata": metadata, "config": {"spec": spec}, "benchmarks": [benchmark]}
    _write("--guidellm-report", file, document)
    stages = ("stages (the mean rate is stated)",) if load.stages else ()
    return (*UNMEASURED_GUIDELLM, *stages)


def _lengths(name: str, lengths: Lengths | Spread) -> dict[str, Any]:
    mean = lengths.median if isinstance(lengths, Lengths) else lengths.mean
    return {f"{name}_tokens": max(1, round(mean)), f"{name}_tokens_max": lengths.max}


def _metrics(good: Sequence[Sample], bad: Sequence[Sample], seconds: float) -> dict[str, Any]:
    def by(values: Callable[[Sequence[Sample]], list[tuple[float, float]]]) -> dict[str, Any]:
        return {"successful": distribution(values(good)), "errored": distribution(values(bad)),
                "incomplete": distribution([]), "total": distribution(values([*good, *bad]))}  # fmt: skip

    def of(
        value: Callable[[Sample], float | None], weight: Callable[[Sample], float] = lambda one: 1.0
    ) -> dict[str, Any]:
        return by(lambda some: [(number, weight(one)) for one in some if (number := value(one)) is not None])

    def per_second(count: Callable[[Sample], float]) -> dict[str, Any]:
        return by(lambda some: rates([(one.at + one.e2e, count(one)) for one in some], seconds))

    first = of(lambda one: None if one.ttft is None else 1000 * one.ttft)
    none = of(lambda one: None)
    parts = (
        f"{part}{suffix}" for part in ("input", "output", "total") for suffix in ("", "_per_second", "_concurrency")
    )
    text = {"words": None, "characters": None} | {
        "tokens": dict.fromkeys(parts)
        | {"input": of(lambda one: one.prompt_tokens), "output": of(lambda one: one.output_tokens)}
    }
    return {
        "requests_per_second": per_second(lambda one: 1.0),
        "request_concurrency": by(
            lambda some: concurrency([(one.at + one.late, one.at + one.e2e) for one in some], seconds)
        ),
        "request_latency": of(lambda one: one.e2e),
        "request_streaming_iterations_count": none,
        "prompt_token_count": of(lambda one: one.prompt_tokens),
        "output_token_count": of(lambda one: one.output_tokens),
        "total_token_count": of(lambda one: one.prompt_tokens + one.output_tokens),
        "time_to_first_token_ms": first,
        "time_to_first_output_token_ms": first,
        "time_per_output_token_ms": of(
            lambda one: 1000 * one.e2e / one.output_tokens if one.output_tokens else None, lambda one: one.output_tokens
        ),
        "inter_token_latency_ms": of(
            lambda one: None if one.tpot is None else 1000 * one.tpot, lambda one: one.output_tokens - 1
        ),
        "prompt_tokens_per_second": per_second(lambda one: one.prompt_tokens),
        "output_tokens_per_second": per_second(lambda one: one.output_tokens),
        "tokens_per_second": per_second(lambda one: one.prompt_tokens + one.output_tokens),
        "output_tokens_per_iteration": none,
        "iter_tokens_per_iteration": none,
        "time_to_last_round_trip_ms": none,
        "avg_round_trip_time_ms": none,
        "text": text,
        "image": dict.fromkeys(("tokens", "images", "pixels", "bytes")),
        "video": dict.fromkeys(("tokens", "frames", "seconds", "bytes")),
        "audio": dict.fromkeys(("tokens", "samples", "seconds", "bytes")),
        "tool_call": dict.fromkeys(("tokens", "mixed_tokens", "count")),
    }


def _request(one: Sample, begun: float, number: int, status: str) -> dict[str, Any]:
    """A request as guidellm lists it: timestamps in seconds since the epoch; its start is the intended one, as in our latencies."""
    intended, first = begun + one.at, None if one.ttft is None else begun + one.at + one.ttft
    last = None if first is None or one.tpot is None else first + one.tpot * (one.output_tokens - 1)
    name = f"{status}-{number}"
    times = {"targeted_start": intended, "request_start": intended, "first_token_iteration": first, "resolve_end": intended + one.e2e,
             "last_token_iteration": last, "request_end": intended + one.e2e}  # fmt: skip
    return {
        "type_": "generative_request_stats", "request_id": name,
        "info": {"request_id": name, "status": status, "timings": times, "error": one.error or None},
        "input_metrics": {"text_tokens": one.prompt_tokens}, "output_metrics": {"text_tokens": one.output_tokens},
        "request_latency": one.e2e, "prompt_tokens": one.prompt_tokens, "output_tokens": one.output_tokens,
        "time_to_first_token_ms": None if one.ttft is None else 1000 * one.ttft,
        "inter_token_latency_ms": None if one.tpot is None else 1000 * one.tpot,
    }  # fmt: skip


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def _write(option: str, file: Path, document: Mapping[str, Any]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(document))
    except OSError as error:
        raise CommandError(f"{option}: {file} cannot be written: {error.strerror or error}") from error
