"""The engine on a GPU, end to end: `python bench/engine_gpu.py [--quick] [--check]`, under eight minutes.

Random weights in Llama-3-8B's and Qwen3-0.6B's shape. The machine's own copy bandwidth and matmul rate are measured
first; each engine runs in a process of its own, transformers' continuous batching beside it on the same requests; the
floor is what a decode step must read at the measured bandwidth. Writes section `engine` of bench/results/<gpu>.json;
--check: status 1 where a figure is missed; status 2: no GPU. `--device cpu --tiny` runs the same program on tiny models
to see that it works: nothing it prints is a figure, and nothing is written.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from gpubench.measure import Report, limits, needs_gpu, write_results
from gpubench.shapes import SHAPES, TINY, Shape, write
from gpubench.sides import SIDES

LLAMA, QWEN = "Llama-3-8B", "Qwen3-0.6B"
TARGETS = {f"{LLAMA} bf16 batch 1": 200.0, f"{LLAMA} bf16 batch 64": 8500.0, f"{LLAMA} bf16 batch 256": 14000.0,
          f"{QWEN} bf16 mixed": 21000.0}  # fmt: skip
READY_SECONDS = 10.0
FP8_GAIN = 0.85  # of the gain that the bytes of a step allow
NGRAM_LEAST = 0.95  # times the speed without draft tokens: they are not made where they do not pay
CASE_SECONDS, ALL_SECONDS = 150.0, 470.0  # a case, and all of them together


@dataclass(frozen=True)
class Case:
    name: str
    side: str
    shape: str
    plan: dict[str, Any]


@dataclass(frozen=True)
class Line:
    name: str
    side: str
    whole: float  # output tokens a second, prompts included
    decode: float  # output tokens a second while all are answered, 0 where it was not measured
    floor: float  # what the bandwidth allows, tokens a second; 0: not for this load
    target: float
    ready: float  # seconds from the process's start
    failed: str = ""

    @property
    def met(self) -> bool:
        return not self.failed and (self.decode or self.whole) >= self.target


def cases(quick: bool, tiny: bool) -> list[Case]:
    context, requested = (24, 6) if tiny else (1024, 128)
    batches = [1, 4] if tiny else [64] if quick else [1, 64, 256]
    mix = (6, 4, 20) if tiny else (64 if quick else 256, 100, 1024)
    settings = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_chunk_tokens": 2048, "max_model_len": 4096}
    if tiny:
        settings = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_chunk_tokens": 32, "max_model_len": 256}
    alike = {"context": context, "requested": requested, "batches": batches, "settings": settings}
    fp8 = {**alike, "settings": {**settings, "quantization": "fp8"}}
    ngram = {**alike, "batches": batches[:2], "drafts": "ngram"}
    peer = {**alike, "batches": [batches[-1] if quick or tiny else 64], "requested": 6 if tiny else 64}
    return [
        Case(f"{LLAMA} bf16", "pagefleet", LLAMA, alike),
        Case(f"{LLAMA} fp8", "pagefleet", LLAMA, fp8),
        Case(f"{QWEN} bf16", "pagefleet", QWEN, {"mixed": mix, "settings": settings}),
        Case(f"{LLAMA} bf16 ngram", "pagefleet", LLAMA, ngram),
        Case(f"{LLAMA} bf16 again", "pagefleet", LLAMA, {"settings": settings}),
        Case(f"{QWEN} bf16", "transformers", QWEN, {"mixed": mix, "settings": settings}),
        Case(f"{LLAMA} bf16", "transformers", LLAMA, peer),
    ]


def run(case: Case, model: str, device: str, limit: float) -> Iterator[dict[str, Any]]:
    """Run a process, and yield its reports, each with `at`: seconds since its start. Raises RuntimeError when it fails."""
    plan = {**case.plan, "model": model, "device": device}
    begun = time.perf_counter()
    command = [sys.executable, __file__, "--side", case.side, "--plan", json.dumps(plan)]
    with tempfile.TemporaryFile("w+") as errors, subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=errors, text=True
    ) as process:  # fmt: skip
        late = threading.Timer(limit, process.kill)
        late.start()
        try:
            for line in process.stdout or ():
                if line.startswith("{"):
                    yield {**json.loads(line), "at": time.perf_counter() - begun}
            status = process.wait()
        finally:
            late.cancel()
            process.kill()
        if status:
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:]
            late_by = f", ended after {limit:.0f} s" if status < 0 else ""
            raise RuntimeError((last[0] if last else f"ended with status {status}") + late_by)


def measured(case: Case, model: str, device: str, report: Report | None, shape: Shape, limit: float) -> list[Line]:
    lines, ready = [], 0.0
    try:
        for result in run(case, model, device, limit):
            if "ready" in result:
                ready = result["at"]
                if not (case.plan.get("batches") or case.plan.get("mixed")):
                    lines.append(Line(f"{case.name} ready", case.side, 0.0, 0.0, 0.0, 0.0, ready))
                continue
            name = f"{case.name} {result['load']}"
            floor = 0.0
            if report is not None and result["load"].startswith("batch"):
                batch = int(result["load"].split()[1])
                weight = 1 if "fp8" in case.name else 2
                context = case.plan["context"] + case.plan["requested"] // 2
                seconds = shape.floor(batch, context, weight, report.copy_bandwidth, report.matmul_rate / weight * 2)
                floor = batch / seconds
            target = TARGETS.get(name, 0.0) if case.side == "pagefleet" and report is not None else 0.0
            lines.append(Line(name, case.side, result["whole"], result["decode"], floor, target, ready))
    except RuntimeError as error:
        lines.append(Line(case.name, case.side, 0.0, 0.0, 0.0, 0.0, ready, str(error)[:200]))
    for line in lines:
        show(line)
    return lines


def show(line: Line) -> None:
    if line.failed:
        print(f"{line.name:32}{line.side:14} failed: {line.failed}", flush=True)
        return
    ratio = f"{(line.decode or line.whole) / line.floor:6.1%}" if line.floor else "      "
    print(f"{line.name:32}{line.side:14}{line.decode:10.0f}{line.whole:10.0f}{line.floor:10.0f} {ratio}"
          f"{line.target:9.0f}{line.ready:8.1f}", flush=True)  # fmt: skip


def missed(lines: list[Line]) -> list[str]:
    """List our figures that were not reached, for which --check ends with an error."""
    own = [line for line in lines if line.side == "pagefleet"]
    missed_names = [line.name for line in own if not line.met]
    by_name = {line.name: line for line in own}
    again = by_name.get(f"{LLAMA} bf16 again ready")
    if again is not None and again.ready > READY_SECONDS:
        missed_names.append(f"ready after {again.ready:.1f} s")
    for name, line in by_name.items():
        half = by_name.get(name.replace("bf16", "fp8"))
        if half is None or half is line or not line.floor or not line.decode:
            continue
        allowed, gain = half.floor / line.floor, half.decode / line.decode
        if gain < FP8_GAIN * allowed:
            missed_names.append(f"{half.name} {gain:.2f} x bf16, {allowed:.2f} is possible")
    for name, line in by_name.items():
        drafted = by_name.get(name.replace("bf16", "bf16 ngram"))
        if drafted is not None and drafted is not line and drafted.decode < NGRAM_LEAST * line.decode:
            missed_names.append(f"{drafted.name} {drafted.decode / line.decode:.2f} x without draft tokens")
    return missed_names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer cases, some three minutes")
    parser.add_argument("--check", action="store_true", help="status 1 if a figure is missed")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny models, for a dry run")
    parser.add_argument("--seconds", type=float, default=ALL_SECONDS, help="for all cases together")
    parser.add_argument("--folder", type=Path, default=None, help="where the checkpoints are written: 18 GB")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--plan", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return SIDES[options.side](json.loads(options.plan))
    if options.device == "cpu" and not options.tiny:
        parser.error("--device cpu is for a dry run: add --tiny")
    report = None
    if options.device == "cuda":
        needs_gpu()
        report = limits(options.quick)
        torch.cuda.empty_cache()
    else:
        print("a dry run on the CPU: it shows that the program works; none of these numbers is a figure")
    begun, lines = time.monotonic(), list[Line]()
    print(f"{'':32}{'':14}{'decode':>10}{'whole':>10}{'floor':>10} {'ratio':>6}{'target':>9}{'ready s':>8}   tokens/s")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        shapes, models = TINY if options.tiny else SHAPES, dict[str, str]()
        for case in cases(options.quick, options.tiny):
            shape = shapes[case.shape]
            if case.shape not in models:
                models[case.shape] = write(shape, Path(folder) / case.shape, options.device)
                if options.device == "cuda":
                    torch.cuda.empty_cache()
            limit = max(1.0, min(CASE_SECONDS, options.seconds - (time.monotonic() - begun)))
            lines += measured(case, models[case.shape], options.device, report, shape, limit)
            if report is not None and not options.tiny:  # after each case: the machine may be gone before the last one
                written = write_results(report.gpu, engine=[asdict(line) for line in lines])
    if report is not None and not options.tiny:
        print(f"{written} written", flush=True)
    print(f"{time.monotonic() - begun:.0f} s")
    failures = missed(lines) if report is not None and not options.tiny else [one.name for one in lines if one.failed]
    if failures:
        print("missed: " + "; ".join(failures))
    raise SystemExit(1 if failures and (options.check or options.tiny) else 0)


if __name__ == "__main__":
    main()
